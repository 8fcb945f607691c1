//! Linears whose rows are shared by threads: each thread packs its own rows and multiplies them by
//! all weights.
//!
//! No thread waits for x that another thread packs, no cache line of x or of the outputs moves
//! between cores, and the preceding and following norms, which divide rows in the same way, find
//! their rows in nearby caches. Every thread reads all weights once, which pays off if each thread
//! has many rows.

use super::call::Call;
use super::compiled::LinearTasks;
use super::sizes::{AVX512_BF16_ROWS, PACK_ROWS};
use super::tuning::MIN_SHARE_ROWS;
use crate::Kernels;
use crate::scratch::SharedPointer;
use crate::simd::MAX_LANES;

/// Rows per unit of a share: the rows of a whole tile of `avx512_bf16`. Every share except the last
/// is a multiple.
const ROWS_UNIT: usize = AVX512_BF16_ROWS;

/// Division of a call's rows into shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    /// Rows of every share except the last, which may have fewer.
    rows: usize,
    count: usize,
}

impl Shares {
    /// Returns shares of `rows` rows for `threads` threads, the same number for each, of at most
    /// `most` rows; `None` if they would be too small to pay off.
    fn new(rows: usize, threads: usize, most: usize) -> Option<Shares> {
        let most = most / ROWS_UNIT * ROWS_UNIT;
        if threads < 2 || most < MIN_SHARE_ROWS || rows < threads * MIN_SHARE_ROWS {
            return None;
        }
        let count = rows.div_ceil(most).next_multiple_of(threads);
        let share = rows.div_ceil(count).next_multiple_of(ROWS_UNIT).min(most);
        Some(Shares { rows: share, count: rows.div_ceil(share) })
    }
}

impl Kernels {
    /// Returns the shares of a call's rows; `None` if they are not shared.
    pub(super) fn shares<T: LinearTasks>(&self, call: &Call<T>) -> Option<Shares> {
        let threads = self.pool.threads().min(self.thread_limits.linear);
        let len = self.packed_share().saturating_sub(MAX_LANES);
        let room = len / call.layout(self.variant).row_len();
        Shares::new(call.rows, threads, room.min(PACK_ROWS))
    }

    /// Returns the number of floats of the scratch for packed rows that belong to one thread: one
    /// vector more than its rows, since the last row may be read as a vector.
    fn packed_share(&self) -> usize {
        self.packed.len() / self.pool.threads() / 16 * 16
    }

    pub(super) fn linear_by_rows<T: LinearTasks>(&self, call: &Call<T>, shares: Shares) {
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let (all, len) = (SharedPointer(self.packed.as_mut_ptr()), self.packed_share());
        self.run_linear(shares.count, &|share, thread| {
            let first = share * shares.rows;
            let part = call.part(first..call.rows.min(first + shares.rows));
            let layout = part.layout(variant);
            let packed = SharedPointer(all.pointer().wrapping_add(thread * len));
            // SAFETY: the variant was checked when the kernels were built. This part of the scratch
            // is the thread's own, with space for the rows of a share; columns are within the
            // shapes that were asserted, and shares have no outputs in common.
            unsafe {
                for tile in 0..layout.tiles.count {
                    part.pack(variant, &layout, packed, tile, 0..layout.blocks());
                }
                for col in (0..part.n).step_by(layout.tiles.task_cols) {
                    let cols = col..part.n.min(col + layout.tiles.task_cols);
                    let (row_tiles, scratch) =
                        (0..layout.tiles.count, per_thread.for_thread(thread));
                    part.outputs(variant, &layout, packed, row_tiles, cols, scratch);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_rows_as_many_for_each_thread_and_fit() {
        for threads in 2..9 {
            for most in [128, 200, 256] {
                for rows in 1..3000 {
                    let Some(Shares { rows: share, count }) = Shares::new(rows, threads, most)
                    else {
                        assert!(rows < threads * MIN_SHARE_ROWS);
                        continue;
                    };
                    assert!(share <= most, "{rows} rows, {threads} threads");
                    assert!((count - 1) * share < rows && rows <= count * share);
                    // The busiest thread has less than a share more than an equal part.
                    let per_thread = count.div_ceil(threads) * share;
                    assert!(per_thread < rows.div_ceil(threads) + share, "{rows} of {threads}");
                }
            }
        }
        assert_eq!(Shares::new(1024, 2, 256), Some(Shares { rows: 256, count: 4 }));
        assert_eq!(Shares::new(512, 2, 256), Some(Shares { rows: 256, count: 2 }));
        assert_eq!(Shares::new(255, 2, 256), None);
        assert_eq!(Shares::new(1024, 2, 127), None);
        assert_eq!(Shares::new(1024, 1, 256), None);
    }
}
