//! Expansion of a block of weights to bytes, with the scales and minimums of its groups.

use model::quantized_format::Bits;

use super::decode::{Decode, Entries, FewEntries, GroupAt, Nibbles, Split, Whole, with_decoder};
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
        with_decoder!(s: S, self.records.bits(), self.form, |decoder| self.decoded(s, decoder));
    }
}

impl Expand {
    #[inline(always)]
    fn decoded<S: Simd, D: Decode<S>>(&self, s: S, decoder: D) {
        let Expand { records, input, inputs, to, .. } = *self;
        let group = records.group();
        for place in 0..inputs / group {
            let of_weight = input / group + place;
            for p in 0..PANELS {
                let panel = self.panel + p;
                if !records.has_panel::<S>(panel) {
                    continue;
                }
                let first_step = place * group / STEP;
                let at = GroupAt { records, panel, group: of_weight };
                // SAFETY: the panel and the group exist; the scratch has space for the block.
                unsafe {
                    let (scale, min) = records.ranges(s, panel, of_weight);
                    let ranges = to.ranges::<S>(place);
                    s.store(ranges.add(p * S::LANES), scale);
                    s.store(ranges.add((PANELS + p) * S::LANES), min);
                    let shared = decoder.shared(s, at);
                    for pair in 0..group / (2 * STEP) {
                        let bytes = decoder.pair(s, at, shared, pair);
                        for (half, bytes) in bytes.into_iter().enumerate() {
                            let to = to.step::<S>(first_step + 2 * pair + half).add(p * S::LANES);
                            s.store(to, s.bits(bytes));
                        }
                    }
                }
            }
        }
    }
}
