//! Sizes of the pieces of a linear, and of the scratch for them.

use super::tuning::{MIN_SHARE_ROWS, SHARING_THREADS};
use crate::simd::MAX_LANES;

/// Maximum number of rows packed at a time; for more rows the weight is read again.
pub(super) const PACK_ROWS: usize = 256;
/// Maximum number of output columns in a task, on any path.
pub(super) const TASK_COLS: usize = 256;
/// Floats from a row of a task's sums to the next: an odd number of cache lines, so that the rows
/// of a column are not in the same few sets of the first-level cache.
pub(super) const RESULT_STRIDE: usize = TASK_COLS + 16;
/// Maximum number of rows in a tile of `avx512_bf16`.
pub(super) const AVX512_BF16_ROWS: usize = 4;
/// Number of panels that are processed together: the width of the register tile.
pub(super) const PANELS: usize = 3;
/// Units along k of one chain, and of one expanded block, which stays in L1. A multiple of every
/// chunk and group.
pub(super) const BLOCK_UNITS: usize = 128;

/// Returns the number of floats of shared scratch for packed rows and their sums over groups.
pub(crate) fn packed_len(rows: usize, k: usize, threads: usize) -> usize {
    // Two rows of bf16 take the space of one of f32.
    let shared = threads.min(SHARING_THREADS) * MIN_SHARE_ROWS / 2;
    rows.clamp(1, PACK_ROWS.max(shared)) * packed_row(k) + MAX_LANES
}

/// Returns the number of floats of a packed row: padded to whole groups, and a sum for every group
/// of the smallest size.
pub(super) fn packed_row(k: usize) -> usize {
    k.next_multiple_of(64) + k.next_multiple_of(64) / 16
}

/// Returns the number of floats of a task's sums.
pub(super) const fn results_len() -> usize {
    PACK_ROWS * RESULT_STRIDE
}
