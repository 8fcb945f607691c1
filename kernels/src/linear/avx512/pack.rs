//! Packs activations in the order in which `direct` and `tiled` read them. Each block of k and tile
//! of rows is `[line] [step][row]`, with four values for each row: the inputs by which a widened
//! vector of weights is multiplied.

use std::arch::x86_64::*;

use half::bf16;

use super::chains::{LINE, STEPS};
use super::panel::widen;
use crate::linear::pack::Pack;

/// Packs a tile of rows.
///
/// # Safety
/// x has the tile's rows, the scratch has space for whole lines of all rows, and no other thread
/// packs this part.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn pack(task: &Pack<bf16>) {
    let (first_row, rows) = (task.tiles.start(task.tile), task.tiles.height(task.tile));
    let size = task.tiles.block;
    for block in task.blocks.clone() {
        let first = block * size;
        let units = size.min(task.units - first);
        let to = task.tiles.packed_before(task.units, block, first_row);
        let to = task.packed.pointer().wrapping_add(to);
        for row in 0..rows {
            let x = task.x.wrapping_add((first_row + row) * task.k + first);
            for at in (0..units).step_by(LINE) {
                let there = task.k.saturating_sub(first + at).min(LINE);
                let mask = if there == LINE { u32::MAX } else { (1 << there) - 1 };
                let to = to.wrapping_add(at * rows + row * 4);
                // SAFETY: masked elements are not accessed; the rest is the caller's promise.
                unsafe {
                    let dwords = _mm512_maskz_loadu_epi16(mask, x.add(at).cast());
                    for high in 0..2 {
                        let values = widen(dwords, high == 1);
                        let quarters = [
                            _mm512_castps512_ps128(values),
                            _mm512_extractf32x4_ps::<1>(values),
                            _mm512_extractf32x4_ps::<2>(values),
                            _mm512_extractf32x4_ps::<3>(values),
                        ];
                        for (quarter, values) in quarters.into_iter().enumerate() {
                            let step = quarter * STEPS / 4 + high;
                            _mm_storeu_ps(to.add(step * rows * 4), values);
                        }
                    }
                }
            }
        }
    }
}
