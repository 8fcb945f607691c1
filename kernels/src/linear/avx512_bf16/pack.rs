//! Packs activations in the order in which `tile` reads them. Each block of k and tile of rows is
//! `[line][row]`, with zeros after the last input.

use std::arch::x86_64::*;

use half::bf16;

use super::{LINE, LINE_UNITS};
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
            let x = task.x.wrapping_add((first_row + row) * task.k);
            for line in 0..units / LINE_UNITS {
                let input = (first / LINE_UNITS + line) * LINE;
                let there = (task.k - input).min(LINE);
                let mask = if there == LINE { u32::MAX } else { (1 << there) - 1 };
                // SAFETY: masked elements are not accessed; the rest is the caller's promise.
                unsafe {
                    let pairs = _mm512_maskz_loadu_epi16(mask, x.add(input).cast());
                    _mm512_storeu_si512(to.add((line * rows + row) * LINE_UNITS).cast(), pairs);
                }
            }
        }
    }
}
