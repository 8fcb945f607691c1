//! Linears whose columns are shared by threads: all threads pack x, then each multiplies it by
//! weights that no other thread reads.

use super::call::Call;
use super::compiled::LinearTasks;
use super::cuts::Cuts;
use super::sizes::{PACK_ROWS, packed_row};
use super::tuning::PARALLEL_PACK;
use crate::Kernels;
use crate::scratch::SharedPointer;
use crate::simd::MAX_LANES;

impl Kernels {
    pub(super) fn linear_by_columns<T: LinearTasks>(&self, call: &Call<T>) {
        let pass_rows = ((self.packed.len() - MAX_LANES) / packed_row(call.k)).min(PACK_ROWS);
        assert!(pass_rows >= 1, "scratch holds at least one packed row");
        for first in (0..call.rows).step_by(pass_rows) {
            self.pass(&call.part(first..call.rows.min(first + pass_rows)));
        }
    }

    fn pass<T: LinearTasks>(&self, call: &Call<T>) {
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let layout = call.layout(variant);
        let (tiles, blocks) = (layout.tiles, layout.blocks());
        let packed = SharedPointer(self.packed.as_mut_ptr());
        let pack = |tile: usize, blocks: std::ops::Range<usize>| {
            // SAFETY: the variant was checked when the kernels were built; the scratch has space
            // for the rows of a pass, and no two tasks pack the same part.
            unsafe { call.pack(variant, &layout, packed, tile, blocks) };
        };
        let [spinning, sleeping] = PARALLEL_PACK;
        if call.rows * call.k >= if self.pool.spins() { spinning } else { sleeping } {
            let some = blocks.div_ceil(8);
            let cuts = blocks.div_ceil(some);
            self.run_linear(tiles.count * cuts, &|task, _| {
                let (tile, cut) = (task / cuts, task % cuts);
                pack(tile, cut * some..blocks.min((cut + 1) * some));
            });
        } else {
            (0..tiles.count).for_each(|tile| pack(tile, 0..blocks));
        }
        let cuts = Cuts::new(call.n, tiles, self.pool.threads());
        self.run_linear(cuts.tasks(), &|task, thread| {
            let (cols, row_tiles) = cuts.of(task);
            // SAFETY: the variant was checked when the kernels were built. Rows and columns are
            // within the shapes that were asserted, tasks write disjoint outputs, and the scratch
            // belongs to this thread.
            unsafe {
                call.outputs(
                    variant,
                    &layout,
                    packed,
                    row_tiles,
                    cols,
                    per_thread.for_thread(thread),
                );
            }
        });
    }
}
