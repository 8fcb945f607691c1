//! The chains of a task's outputs, and the grouping of its columns for them.

use std::ops::Range;

use crate::linear::sizes::RESULT_STRIDE;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use crate::simd::avx512_f32fma::add_chains;

/// Inputs in a cache line of weights.
pub(super) const LINE: usize = 32;
/// Vectors to which a line of a panel is widened: the low and the high halves of the dwords of each
/// quarter.
pub(super) const STEPS: usize = 8;
/// Columns of a panel.
pub(super) const COLS: usize = 4;
/// Panels that `tiled` widens and multiplies together.
pub(super) const PANELS: usize = 4;

/// The chains of all outputs: for each group of panels, row by row, one vector per panel. Each
/// column after the last whole panel is a panel of its own, which contains that column four times;
/// each panel after the last whole group is a group of its own.
#[derive(Debug)]
pub(super) struct Chains {
    pub(super) at: *mut f32,
    pub(super) rows: usize,
    pub(super) cols: Range<usize>,
    /// Panels per group.
    pub(super) group: usize,
}

impl Chains {
    pub(super) fn whole_panels(&self) -> usize {
        self.cols.len() / COLS
    }

    pub(super) fn panels(&self) -> usize {
        self.whole_panels() + self.cols.len() % COLS
    }

    /// Returns the number of columns in a panel.
    pub(super) fn width(&self, panel: usize) -> usize {
        if panel < self.whole_panels() { COLS } else { 1 }
    }

    /// Returns the first column of a panel.
    pub(super) fn column(&self, panel: usize) -> usize {
        let whole = self.whole_panels().min(panel);
        self.cols.start + whole * COLS + panel - whole
    }

    /// Returns the number of panels in the group of a panel.
    #[inline(always)]
    pub(super) fn together(&self, panel: usize) -> usize {
        if panel < self.whole_panels() / self.group * self.group { self.group } else { 1 }
    }

    /// Returns the first panel of every group.
    pub(super) fn groups(&self) -> impl Iterator<Item = usize> {
        let whole = self.whole_panels() / self.group * self.group;
        (0..whole).step_by(self.group).chain(whole..self.panels())
    }

    /// Returns the vector of a panel and a row of the task.
    #[inline(always)]
    pub(super) fn of(&self, panel: usize, row: usize) -> *mut f32 {
        let together = self.together(panel);
        let first = panel / together * together;
        let vector = first * self.rows + row * together + panel - first;
        self.at.wrapping_add(vector * Avx512::LANES)
    }

    /// Adds up the chains of every output and stores the sums in `results`, whose rows are
    /// `RESULT_STRIDE` apart.
    ///
    /// # Safety
    /// All chains are complete, and the results have sufficient space.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn add(&self, results: *mut f32) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        for first in (0..self.panels()).step_by(4) {
            let panels: [usize; 4] = std::array::from_fn(|i| (first + i).min(self.panels() - 1));
            let whole = self.whole_panels().saturating_sub(first);
            for row in 0..self.rows {
                let to = results.wrapping_add(row * RESULT_STRIDE);
                // SAFETY: the caller's promise. The width of the results is a multiple of sixteen
                // columns.
                unsafe {
                    let v = panels.map(|panel| s.load(self.of(panel, row)));
                    let sums = add_chains(v);
                    if whole >= 4 {
                        s.store(to.add(first * COLS), sums);
                        continue;
                    }
                    let mut lanes = [0.0; Avx512::LANES];
                    s.store(lanes.as_mut_ptr(), sums);
                    for panel in first..self.panels().min(first + 4) {
                        let at = self.column(panel) - self.cols.start;
                        let from = lanes.as_ptr().add((panel - first) * COLS);
                        std::ptr::copy_nonoverlapping(from, to.add(at), self.width(panel));
                    }
                }
            }
        }
    }
}
