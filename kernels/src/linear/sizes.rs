//! How a linear is cut, and the scratch that this takes.

use super::tuning::{MIN_SHARE_ROWS, SHARING_THREADS};
use crate::simd::MAX_LANES;

/// Rows packed at a time; beyond it the weight is read again.
pub(super) const PACK_ROWS: usize = 256;
/// Output columns of one task at most, whatever its path.
pub(super) const TASK_COLS: usize = 256;
/// Floats from a row of a task's sums to the next: an odd number of lines, so that a column's rows
/// do not meet in a few sets of the first level of cache.
pub(super) const RESULT_STRIDE: usize = TASK_COLS + 16;
/// Rows of a tile of `avx512_bf16` at most.
pub(super) const AVX512_BF16_ROWS: usize = 4;
/// Panels that are worked on together: the width of the register tile.
pub(super) const PANELS: usize = 3;
/// Units along k of one chain, and of one expanded block, which stays in L1. A multiple of every
/// chunk and group.
pub(super) const BLOCK_UNITS: usize = 128;

/// Floats of shared scratch for packed rows and their sums over groups.
pub(crate) fn packed_len(rows: usize, k: usize, threads: usize) -> usize {
    // Two rows of bf16 take the room of one of f32.
    let shared = threads.min(SHARING_THREADS) * MIN_SHARE_ROWS / 2;
    rows.clamp(1, PACK_ROWS.max(shared)) * packed_row(k) + MAX_LANES
}

/// Floats of a packed row: padded to whole groups, and a sum for every group of the smallest size.
pub(super) fn packed_row(k: usize) -> usize {
    k.next_multiple_of(64) + k.next_multiple_of(64) / 16
}

/// Floats of a task's sums.
pub(super) const fn results_len() -> usize {
    PACK_ROWS * RESULT_STRIDE
}
