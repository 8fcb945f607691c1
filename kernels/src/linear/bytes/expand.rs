//! Expansion of a block of weights to bytes, with the scales and minimums of its groups.

use model::quantized_format::Bits;

use super::form::ByteForm;
use super::shape::{BLOCK_INPUTS, PANELS, STEP};
use crate::linear::reader::Records;
use crate::linear::tiled::TILE_LEN;
use crate::simd::{MAX_LANES, OutOfLine, Simd};

/// Maximum number of groups in a block.
const MAX_GROUPS: usize = BLOCK_INPUTS / 16;
/// Floats of a group's scales and minimums.
const RANGES: usize = 2 * PANELS * MAX_LANES;
/// Floats of an expanded block.
const BLOCK_LEN: usize = BLOCK_INPUTS / STEP * PANELS * MAX_LANES;

const _: () = assert!(BLOCK_LEN + MAX_GROUPS * RANGES <= TILE_LEN);

/// A block of two panels in a thread's scratch: bytes of `[step][panel][lane]` dwords; and, for
/// each group, the scales of both panels and their minimums.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expanded(pub(super) *mut f32);

impl Expanded {
    /// Returns the bytes of a step.
    #[inline(always)]
    pub(super) fn step<S: Simd>(self, step: usize) -> *mut f32 {
        self.0.wrapping_add(step * PANELS * S::LANES)
    }

    /// Returns the scales of a group, which its minimums follow.
    #[inline(always)]
    pub(super) fn ranges<S: Simd>(self, group: usize) -> *mut f32 {
        self.0.wrapping_add(BLOCK_LEN + group * 2 * PANELS * S::LANES)
    }
}

/// Expands some groups of x of two panels, those of a block or up to the end of k. The code that
/// constructs it guarantees that they exist, except for the second panel.
pub(super) struct Expand {
    pub(super) records: Records,
    pub(super) form: ByteForm,
    pub(super) panel: usize,
    /// First input.
    pub(super) input: usize,
    pub(super) inputs: usize,
    pub(super) to: Expanded,
}

impl<S: Simd> OutOfLine<S> for Expand {
    #[inline(always)]
    fn run(self, s: S) {
        let Expand { records, input, inputs, to, .. } = self;
        let group = records.group();
        for place in 0..inputs / group {
            let of_weight = input / group + place;
            for p in 0..PANELS {
                let panel = self.panel + p;
                if !records.has_panel::<S>(panel) {
                    continue;
                }
                let first_step = place * group / STEP;
                // SAFETY: the panel and the group exist; the scratch has space for the block.
                unsafe {
                    let (scale, min) = records.ranges(s, panel, of_weight);
                    let ranges = to.ranges::<S>(place);
                    s.store(ranges.add(p * S::LANES), scale);
                    s.store(ranges.add((PANELS + p) * S::LANES), min);
                    self.bytes(s, panel, of_weight, |step, bytes| {
                        let to = to.step::<S>(first_step + step).add(p * S::LANES);
                        s.store(to, s.bits(bytes));
                    });
                }
            }
        }
    }
}

impl Expand {
    /// Calls `store` with the bytes of each step of a group.
    ///
    /// # Safety
    /// The panel and the group exist.
    #[inline(always)]
    unsafe fn bytes<S: Simd>(
        &self,
        s: S,
        panel: usize,
        group: usize,
        mut store: impl FnMut(usize, S::D),
    ) {
        let records = self.records;
        let steps = records.group() / STEP;
        let offset = self.form.offset;
        // SAFETY: the vectors of a group exist.
        let load = |vector: usize| unsafe {
            let at = records.vector::<S>(panel, group, vector);
            records.prefetch_after(s, at);
            s.load_dwords(at)
        };
        match records.bits() {
            Bits::Four => {
                for pair in 0..steps / 2 {
                    let vector = load(pair);
                    store(2 * pair, s.nibble_bytes(vector, false));
                    store(2 * pair + 1, s.nibble_bytes(vector, true));
                }
            }
            Bits::Eight => {
                let offset = s.splat_dword(u32::from_ne_bytes([offset.wrapping_neg(); 4]));
                for step in 0..steps {
                    store(step, s.sub_bytes(load(step), offset));
                }
            }
            Bits::Table(table) => {
                let values = table.values().map(|value| value.wrapping_add(offset as i8));
                for pair in 0..steps / 2 {
                    let vector = load(pair);
                    for (step, high) in [false, true].into_iter().enumerate() {
                        let codes = s.nibble_bytes(vector, high);
                        store(2 * pair + step, s.table_bytes(codes, &values));
                    }
                }
            }
            bits @ (Bits::Five | Bits::FiveSigned | Bits::SixSigned) => {
                let (upper, above) = (bits.upper(), load(0));
                for pair in 0..steps / 2 {
                    let vector = load(1 + pair);
                    for (step, high) in [false, true].into_iter().enumerate() {
                        let step = 2 * pair + step;
                        let codes = s.nibble_bytes(vector, high);
                        store(step, s.or_dwords(codes, s.upper_bits(above, upper * step, upper)));
                    }
                }
            }
        }
    }
}
