//! A linear with checked operands, and the parts into which its work is divided.

use std::ops::Range;

use model::quantized_format::{ActivationFormat, Bits, Grouped, WeightFormat};

use super::compiled::LinearTasks;
use super::epilogue::Epilogue;
use super::pack::Pack;
use super::path::{PackedLayout, Shape};
use super::reader;
use super::registry::Path;
use super::rows::RowTiles;
use super::task::{EpilogueTask, Sums, TaskOperands};
use crate::scratch::SharedPointer;
use crate::variant::Variant;

/// The weight of a linear.
#[derive(Debug, Clone, Copy)]
pub(super) enum Weight<T> {
    Plain(*const T),
    Grouped(Grouped, *const u8),
}

/// Checks that linears can read `format`.
///
/// # Panics
/// Panics if they cannot.
pub(super) fn check_format(format: Grouped) {
    assert!(matches!(format.group, 16 | 32 | 64), "groups have 16, 32 or 64 inputs");
    let upper = if (4..8).contains(&format.bits.count()) { format.bits.upper() } else { 0 };
    assert!(upper == 0 || upper * format.group == 32, "upper bits of a group are one vector");
}

impl<T> Weight<T> {
    /// Returns matrix `index` of several consecutive matrices `[n, k]`.
    pub(super) fn matrix(self, index: usize, n: usize, k: usize) -> Weight<T> {
        match self {
            Weight::Plain(first) => Weight::Plain(first.wrapping_add(index * n * k)),
            Weight::Grouped(format, first) => {
                Weight::Grouped(format, first.wrapping_add(index * format.size_bytes(n, k)))
            }
        }
    }

    /// Returns the address of the weight.
    pub(super) fn first_byte(self) -> *const u8 {
        match self {
            Weight::Plain(first) => first.cast(),
            Weight::Grouped(_, first) => first,
        }
    }

    /// Returns the matrix that begins `bytes` bytes after this one.
    pub(super) fn at_byte(self, bytes: usize) -> Weight<T> {
        match self {
            Weight::Plain(first) => Weight::Plain(first.wrapping_byte_add(bytes)),
            Weight::Grouped(format, first) => Weight::Grouped(format, first.wrapping_add(bytes)),
        }
    }

    fn format(&self) -> WeightFormat {
        match self {
            Weight::Plain(_) => WeightFormat::Plain,
            Weight::Grouped(format, _) => WeightFormat::Grouped(*format),
        }
    }
}

/// The operands and the output of a linear.
#[derive(Debug)]
pub(super) struct Call<T> {
    pub rows: usize,
    pub n: usize,
    /// Elements from a row of the outputs to the next: `n`, or more if other columns are computed
    /// elsewhere.
    pub stride: usize,
    pub k: usize,
    pub x: *const T,
    pub weight: Weight<T>,
    pub activations: ActivationFormat,
    pub bias: Option<*const f32>,
    pub epilogue: Epilogue<T>,
}

// SAFETY: the pointers come from slices borrowed for the whole call; x, weight and bias are only
// read, and tasks write disjoint parts of the outputs.
unsafe impl<T: Sync> Sync for Call<T> {}

/// Layout of a call's packed x.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    path: Path,
    pub tiles: RowTiles,
    /// Units of a row.
    pub units: usize,
    /// Inputs of a group and the bits of its weights, if weights are grouped.
    group: Option<(usize, Bits)>,
    /// Floats of a row that are stored after all packed rows: its sums over groups, or its factors.
    sums: usize,
}

impl Layout {
    pub(super) fn blocks(&self) -> usize {
        self.units.div_ceil(self.tiles.block)
    }

    /// Returns the number of floats of a packed row, including those stored after all packed rows.
    pub(super) fn row_len(&self) -> usize {
        self.units + self.sums
    }
}

impl<T: LinearTasks> Call<T> {
    /// Returns the call for some of its rows.
    pub(super) fn part(&self, rows: Range<usize>) -> Call<T> {
        let Call { n, stride, k, x, weight, activations, bias, epilogue, .. } = *self;
        Call {
            rows: rows.len(),
            n,
            stride,
            k,
            x: x.wrapping_add(rows.start * k),
            weight,
            activations,
            bias,
            epilogue: epilogue.skip(rows.start * stride),
        }
    }

    pub(super) fn layout(&self, variant: Variant) -> Layout {
        let Call { rows, k, ref weight, activations, .. } = *self;
        let shape = Shape { rows, k, format: weight.format(), activations };
        let path = Path::of::<T>(variant, shape);
        let PackedLayout { tiles, units, sums } = path.layout(variant, shape);
        let group = match shape.format {
            WeightFormat::Plain => None,
            WeightFormat::Grouped(format) => Some((format.group, format.bits)),
        };
        Layout { path, tiles, units, group, sums }
    }

    fn sums(&self, layout: &Layout, packed: SharedPointer<f32>) -> SharedPointer<f32> {
        SharedPointer(packed.pointer().wrapping_add(self.rows * layout.units))
    }

    /// Packs some blocks of a tile of rows.
    ///
    /// # Safety
    /// The machine has `variant`, for which `layout` was computed; `packed` has space for all rows,
    /// and no other thread packs or reads this part meanwhile.
    pub(super) unsafe fn pack(
        &self,
        variant: Variant,
        layout: &Layout,
        packed: SharedPointer<f32>,
        tile: usize,
        blocks: Range<usize>,
    ) {
        let Layout { tiles, units, group, .. } = *layout;
        let sums = self.sums(layout, packed);
        let task = Pack { x: self.x, k: self.k, units, tiles, tile, blocks, packed, sums, group };
        // SAFETY: x has these rows; the rest is the caller's promise.
        unsafe { T::pack(variant, layout.path, task) };
    }

    /// Computes the outputs of some columns and tiles of rows.
    ///
    /// # Safety
    /// The machine has `variant`, for which `layout` was computed; x is packed; `scratch` is the
    /// thread's own; columns and tiles exist, and no other thread writes these outputs.
    pub(super) unsafe fn outputs(
        &self,
        variant: Variant,
        layout: &Layout,
        packed: SharedPointer<f32>,
        row_tiles: Range<usize>,
        cols: Range<usize>,
        scratch: *mut f32,
    ) {
        let &Call { stride, bias, epilogue, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            let area = self.multiply(variant, layout, packed, row_tiles, cols, scratch);
            T::finish(variant, EpilogueTask { area, n: stride, bias, epilogue, output_rows: None });
        }
    }

    /// Computes the sums of some columns and tiles of rows. Returns the area whose results they
    /// are.
    ///
    /// # Safety
    /// The conditions of [`Call::outputs`] hold, except that outputs are not accessed.
    pub(super) unsafe fn multiply(
        &self,
        variant: Variant,
        layout: &Layout,
        packed: SharedPointer<f32>,
        row_tiles: Range<usize>,
        cols: Range<usize>,
        scratch: *mut f32,
    ) -> TaskOperands {
        let &Call { n, k, weight, .. } = self;
        let (tiles, sums) = (layout.tiles, self.sums(layout, packed));
        let area = TaskOperands { packed, sums, tiles, row_tiles, cols, scratch };
        // SAFETY: weights are `[n, k]`; the rest is the caller's promise.
        unsafe {
            match weight {
                Weight::Plain(weight) => {
                    let reader = reader::Plain::new(weight, n, k);
                    T::plain(variant, layout.path, Sums { reader, area: area.clone() });
                }
                Weight::Grouped(format, records) => {
                    let reader = reader::Records::new(records, format, n, k);
                    T::grouped(variant, layout.path, Sums { reader, area: area.clone() });
                }
            }
        }
        area
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::linear::LinearOut;
    use crate::simd::MAX_LANES;

    fn check<T: LinearTasks>(
        variant: Variant,
        weight: Weight<T>,
        activations: ActivationFormat,
        rows: usize,
        k: usize,
    ) {
        let x = vec![T::from_f32(1.0); rows * k];
        let epilogue = Epilogue::new(LinearOut::Store(&mut []), 0);
        let (x, bias) = (x.as_ptr(), None);
        let call = Call { rows, n: 0, stride: 0, k, x, weight, activations, bias, epilogue };
        let layout = call.layout(variant);
        let room = rows * layout.row_len();
        let untouched = f32::from_bits(0x7fc1_2345);
        let mut memory = vec![untouched; 2 * room + 1024];
        for tile in 0..layout.tiles.count {
            let packed = SharedPointer(memory.as_mut_ptr());
            // SAFETY: the variant is available, and there is more space than is needed.
            unsafe { call.pack(variant, &layout, packed, tile, 0..layout.blocks()) };
        }
        let is_touched = |value: &f32| value.to_bits() != untouched.to_bits();
        let end = memory.iter().rposition(is_touched).map_or(0, |last| last + 1);
        let context = format!("{variant:?} {:?} {rows} rows of {k}", layout.path);
        assert!(end <= room, "{context}: {end} of {room}");
        assert!(end + MAX_LANES + rows > room, "{context}: {end} of {room}");
    }

    /// Shares of rows rely on this where one thread's scratch ends and the next one's starts.
    #[test]
    fn packed_rows_take_what_their_layout_says() {
        let int8 = ActivationFormat::Int8;
        for variant in Variant::available() {
            for rows in [1, 5, 37, 256] {
                for k in [64, 130, 1088] {
                    check::<f32>(variant, Weight::Plain(std::ptr::null()), int8, rows, k);
                    check::<bf16>(variant, Weight::Plain(std::ptr::null()), int8, rows, k);
                    for stored in Grouped::STORED {
                        for format in [stored, stored.widened()] {
                            let weight = Weight::Grouped(format, std::ptr::null());
                            check::<f32>(variant, weight, int8, rows, k);
                            let weight = Weight::Grouped(format, std::ptr::null());
                            check::<bf16>(variant, weight, int8, rows, k);
                            check::<bf16>(variant, weight, ActivationFormat::Int12, rows, k);
                        }
                    }
                }
            }
        }
    }
}
