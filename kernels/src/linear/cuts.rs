//! How the outputs of a pass are cut into tasks.

use std::ops::Range;

use super::rows::RowTiles;
use super::sizes::PANELS;
use crate::simd::MAX_LANES;

/// Columns of the narrowest task; a multiple of every variant's register tile.
const MIN_COLS: usize = PANELS * MAX_LANES;

/// Columns and rows of every task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    n: usize,
    tiles: RowTiles,
    /// Columns of a task.
    cols: usize,
    /// Cuts of the rows.
    row_cuts: usize,
}

impl Cuts {
    pub(super) fn new(n: usize, tiles: RowTiles, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { 8 * threads };
        let cols = (n / wanted / MIN_COLS * MIN_COLS).clamp(MIN_COLS, tiles.task_cols);
        // Rows are cut only when there are too few columns: each cut expands the weight again.
        let row_cuts = (wanted / 2 / n.div_ceil(cols)).clamp(1, (tiles.count / 2).max(1));
        Cuts { n, tiles, cols, row_cuts }
    }

    pub(super) fn tasks(self) -> usize {
        self.n.div_ceil(self.cols) * self.row_cuts
    }

    /// Columns and tiles of rows of a task. Cuts of the same columns follow each other: the weight
    /// comes from memory once.
    pub(super) fn of(self, task: usize) -> (Range<usize>, Range<usize>) {
        let (cut, columns) = (task % self.row_cuts, task / self.row_cuts);
        let tile = |cut: usize| cut * self.tiles.count / self.row_cuts;
        let first = columns * self.cols;
        (first..self.n.min(first + self.cols), tile(cut)..tile(cut + 1))
    }
}
