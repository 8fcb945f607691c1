//! A linear whose operands are checked, and the parts in which it is worked on.

use std::ops::Range;

use model::compressed::Bits;

use super::compiled::LinearTasks;
#[cfg(target_arch = "x86_64")]
use super::dots;
use super::epilogue::Epilogue;
use super::form;
#[cfg(target_arch = "x86_64")]
use super::integers;
use super::pack::Pack;
use super::rows::RowTiles;
#[cfg(target_arch = "x86_64")]
use super::rows::Way;
use super::task::{Area, Finish, Sums};
use super::way::{self, Weight};
use crate::scratch::Shared;
use crate::variant::Variant;

/// What a linear computes.
#[derive(Debug)]
pub(super) struct Call<T> {
    pub rows: usize,
    pub n: usize,
    pub k: usize,
    pub x: *const T,
    pub weight: Weight<T>,
    pub bias: Option<*const f32>,
    pub epilogue: Epilogue<T>,
}

// SAFETY: the pointers come from slices borrowed for the whole call; x, weight and bias are only read, and tasks write
// disjoint parts of the outputs.
unsafe impl<T: Sync> Sync for Call<T> {}

/// How x of a call is packed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub tiles: RowTiles,
    /// Units of a row.
    pub units: usize,
    /// Inputs of a group and the bits of its weights, if these are grouped.
    group: Option<(usize, Bits)>,
}

impl Layout {
    pub(super) fn blocks(&self) -> usize {
        self.units.div_ceil(self.tiles.block)
    }

    /// Floats of a packed row and its sums over groups.
    pub(super) fn row_len(&self) -> usize {
        self.units + self.group.map_or(0, |(group, _)| self.units.div_ceil(group))
    }
}

impl<T: LinearTasks> Call<T> {
    /// The same for some of its rows.
    pub(super) fn part(&self, rows: Range<usize>) -> Call<T> {
        let Call { n, k, x, weight, bias, epilogue, .. } = *self;
        Call {
            rows: rows.len(),
            n,
            k,
            x: x.wrapping_add(rows.start * k),
            weight,
            bias,
            epilogue: epilogue.skip(rows.start * n),
        }
    }

    pub(super) fn layout(&self, variant: Variant) -> Layout {
        let Call { rows, k, weight, .. } = *self;
        let tiles = way::tiles(variant, (rows, k), weight);
        let (units, group) = match weight {
            // Whole lines, where x is packed by lines; a row of scratch is padded to more.
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.way == Way::Quarters => (k.next_multiple_of(32), None),
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.way == Way::Dots => (dots::units(k), None),
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.way == Way::Amx => (k.div_ceil(2), None),
            Weight::Plain(_) => (k, None),
            #[cfg(target_arch = "x86_64")]
            Weight::Grouped(form, _) if matches!(tiles.way, Way::Integers | Way::IntegerTiles) => {
                (integers::units_of(form.groups(k) * form.group), Some((form.group, form.bits)))
            }
            Weight::Grouped(form, _) => {
                (form.groups(k) * form.group, Some((form.group, form.bits)))
            }
        };
        Layout { tiles, units, group }
    }

    fn sums(&self, layout: &Layout, packed: Shared<f32>) -> Shared<f32> {
        Shared(packed.pointer().wrapping_add(self.rows * layout.units))
    }

    /// Packs some blocks of a tile of rows.
    ///
    /// # Safety
    /// The machine has `variant`, whose layout this is; `packed` has room for all rows, and nobody else packs or reads this
    /// part meanwhile.
    pub(super) unsafe fn pack(
        &self,
        variant: Variant,
        layout: &Layout,
        packed: Shared<f32>,
        tile: usize,
        blocks: Range<usize>,
    ) {
        let Layout { tiles, units, group } = *layout;
        let sums = self.sums(layout, packed);
        let task = Pack { x: self.x, k: self.k, units, tiles, tile, blocks, packed, sums, group };
        // SAFETY: x has these rows; the rest is the caller's promise.
        unsafe { T::pack(variant, task) };
    }

    /// The outputs of some columns and tiles of rows.
    ///
    /// # Safety
    /// The machine has `variant`, whose layout this is; x is packed; `scratch` is the thread's own; columns and tiles exist,
    /// and nobody else writes these outputs.
    pub(super) unsafe fn outputs(
        &self,
        variant: Variant,
        layout: &Layout,
        packed: Shared<f32>,
        (row_tiles, cols): (Range<usize>, Range<usize>),
        scratch: *mut f32,
    ) {
        let &Call { n, k, weight, bias, epilogue, .. } = self;
        let (tiles, sums) = (layout.tiles, self.sums(layout, packed));
        let area = Area { packed, sums, tiles, row_tiles, cols, scratch };
        // SAFETY: weights are `[n, k]`; the rest is the caller's promise.
        unsafe {
            match weight {
                Weight::Plain(weight) => {
                    let form = form::Plain::new(weight, n, k);
                    T::plain(variant, Sums { form, area: area.clone() });
                }
                Weight::Grouped(format, records) => {
                    let form = form::Records::new(records, format, n, k);
                    T::grouped(variant, Sums { form, area: area.clone() });
                }
            }
            T::finish(variant, Finish { area, n, bias, epilogue });
        }
    }
}
