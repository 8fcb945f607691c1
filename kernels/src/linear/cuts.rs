//! Division of the outputs of a pass into tasks.

use std::ops::Range;

use super::rows::RowTiles;
use super::sizes::PANELS;
use crate::simd::MAX_LANES;

/// Columns of the narrowest task; a multiple of every variant's register tile.
const MIN_COLS: usize = PANELS * MAX_LANES;

/// Division of columns and rows into tasks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    n: usize,
    tiles: RowTiles,
    /// Columns per unit. Columns are cut between units, never within them.
    unit: usize,
    col_cuts: usize,
    /// Number of parts into which the rows are cut.
    row_cuts: usize,
}

impl Cuts {
    pub(super) fn new(n: usize, tiles: RowTiles, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { 8 * threads };
        let cols = (n / wanted / MIN_COLS * MIN_COLS).clamp(MIN_COLS, tiles.task_cols);
        // Rows are cut only if there are too few columns, since each cut expands the weight again.
        let col_cuts = n.div_ceil(cols);
        let row_cuts = (wanted / 2 / col_cuts).clamp(1, (tiles.count / 2).max(1));
        // Each thread gets the same number of tasks, of sizes as equal as possible, so that threads
        // finish together.
        let unit = if cols.is_multiple_of(MIN_COLS) { MIN_COLS } else { cols };
        let col_cuts = if row_cuts > 1 { col_cuts } else { col_cuts.next_multiple_of(threads) };
        Cuts { n, tiles, unit, col_cuts: col_cuts.min(n.div_ceil(unit)), row_cuts }
    }

    pub(super) fn tasks(self) -> usize {
        self.col_cuts * self.row_cuts
    }

    /// Returns the columns and tiles of rows of a task. Row cuts of the same columns are
    /// consecutive tasks, so that the weight is read from memory once.
    pub(super) fn of(self, task: usize) -> (Range<usize>, Range<usize>) {
        let (cut, columns) = (task % self.row_cuts, task / self.row_cuts);
        let tile = |cut: usize| cut * self.tiles.count / self.row_cuts;
        let units = self.n.div_ceil(self.unit);
        let first = |cut: usize| self.n.min(cut * units / self.col_cuts * self.unit);
        (first(columns)..first(columns + 1), tile(cut)..tile(cut + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_all_columns_and_threads_have_equal_shares() {
        for task_cols in [48, 96, 192, 256] {
            for threads in 1..5 {
                for n in (1..1200).chain([7168, 28672, 49152]) {
                    let tiles = RowTiles::even(4, 4, task_cols, 1);
                    let cuts = Cuts::new(n, tiles, threads);
                    let tasks: Vec<_> = (0..cuts.tasks()).map(|task| cuts.of(task).0).collect();
                    let mut end = 0;
                    for cols in &tasks {
                        assert_eq!(cols.start, end, "{n} columns");
                        assert!(!cols.is_empty() && cols.len() <= task_cols, "{cols:?} of {n}");
                        end = cols.end;
                    }
                    assert_eq!(end, n);
                    if tasks.len().is_multiple_of(threads) && task_cols % MIN_COLS == 0 {
                        let shares = tasks.chunks(tasks.len() / threads);
                        let lens = shares.map(|share| share.iter().map(Range::len).sum::<usize>());
                        let (least, most) = (lens.clone().min().unwrap(), lens.max().unwrap());
                        assert!(most - least < 2 * MIN_COLS, "{n} columns, {threads} threads");
                    }
                }
            }
        }
    }
}
