//! Multiplication of all tiles of a task.

use std::ops::Range;

use half::bf16;

use super::prefetch::{NextColumns, STEP_LINES};
use super::results::add_lanes;
use super::tile::Columns;
use super::{LINE, LINE_UNITS, all_rows, streams, tile_cols};
use crate::linear::prefetch::Lines;
use crate::linear::reader::Plain;
use crate::linear::sizes::{AVX512_BF16_ROWS, RESULT_STRIDE};
use crate::linear::task::TaskOperands;

/// Steps at the end of columns in which the first lines of the next ones are prefetched; short rows
/// would otherwise start with cache misses.
const START_STEPS: usize = 8 / STEP_LINES;

/// Some columns of a task.
#[derive(Clone, Copy)]
struct Part<'a> {
    reader: Plain<bf16>,
    area: &'a TaskOperands,
    first: usize,
    cols: usize,
}

/// Computes the sums of the task's columns and rows.
///
/// # Safety
/// The machine has AVX512-BF16; x is packed by lines, columns exist, and the scratch is the task's.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn sums(reader: Plain<bf16>, area: &TaskOperands) {
    let end = area.cols.end;
    let wide = tile_cols(area.tiles.rows);
    let cols = |first: usize| if first + wide <= end { wide } else { 1 };
    let after = |part: Part<'_>| part.first + part.cols;
    let columns = if all_rows::fits(area.tiles.rows) {
        // SAFETY: the caller's promise; these numbers of rows are two tiles.
        unsafe { all_rows::sums(reader, area) }
    } else if area.tiles.count == 1 {
        // SAFETY: the caller's promise.
        unsafe { streams::sums(reader, area) }
    } else {
        area.cols.clone()
    };
    let of = |first: usize| Part { reader, area, first, cols: cols(first) };
    let parts = || {
        std::iter::successors((!columns.is_empty()).then(|| of(columns.start)), |&part| {
            (after(part) < end).then(|| of(after(part)))
        })
    };
    // SAFETY: these columns and blocks exist; the rest is the caller's promise.
    unsafe {
        if area.tiles.count == 1 {
            for part in parts() {
                // The task's own columns are followed by those of the task that this thread most
                // likely executes next.
                let next = Part { first: after(part), cols: wide, ..part };
                let exists = next.first + wide <= reader.outputs();
                part.multiply_all(if exists { next.lines(0) } else { Lines::NONE });
            }
            return;
        }
        let (units, size) = (super::units(reader.inputs()), area.tiles.block);
        for (run, is_last) in area.runs(size, units.div_ceil(size)) {
            for part in parts() {
                for block in run.clone() {
                    let next = if block + 1 < run.end {
                        part.lines(block + 1)
                    } else if after(part) < end {
                        of(after(part)).lines(run.start)
                    } else if !is_last {
                        of(columns.start).lines(run.end)
                    } else {
                        Lines::NONE
                    };
                    part.multiply(block, next);
                }
            }
        }
    }
}

impl Part<'_> {
    fn inputs(&self, block: usize) -> Range<usize> {
        let size = self.area.tiles.block / LINE_UNITS * LINE;
        block * size..self.reader.inputs().min((block + 1) * size)
    }

    fn lines(&self, block: usize) -> Lines {
        self.reader.lines(self.first..self.first + self.cols, self.inputs(block))
    }

    fn columns(&self, block: usize) -> Columns {
        let inputs = self.inputs(block);
        Columns {
            weight: self.reader.row(self.first).wrapping_add(inputs.start),
            stride: self.reader.inputs(),
            inputs: inputs.len(),
        }
    }

    /// Returns packed x of a block, from a tile of rows on.
    fn x(&self, block: usize, tile: usize) -> *const f32 {
        let TaskOperands { packed, tiles, .. } = self.area;
        let to = tiles.packed_before(super::units(self.reader.inputs()), block, tiles.start(tile));
        packed.pointer().wrapping_add(to)
    }

    /// Returns the sums of the first row of a tile of rows.
    fn results(&self, tile: usize) -> *mut f32 {
        let TaskOperands { tiles, row_tiles, cols, .. } = self.area;
        let row = tiles.start(tile) - tiles.start(row_tiles.start);
        self.area.results().wrapping_add(row * RESULT_STRIDE + self.first - cols.start)
    }

    /// Computes the sums of all blocks for the only tile of rows, for columns that belong to no
    /// stream. Only the next task's first lines are prefetched: more would displace the columns'
    /// own loads.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for the columns of `self`.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply_all(self, next: Lines) {
        let TaskOperands { tiles, .. } = self.area;
        let units = super::units(self.reader.inputs());
        let blocks = units.div_ceil(tiles.block);
        macro_rules! tiles {
            ($($rows:literal x $cols:literal)*) => {
                match (tiles.rows, self.cols) {
                    $(($rows, $cols) => for block in 0..blocks {
                        let columns = self.columns(block);
                        let x = self.x(block, 0);
                        let mut prefetch = if block + 1 == blocks && next.rows > 0 {
                            let steps = columns.inputs / LINE / STEP_LINES;
                            NextColumns::<$cols>::after(steps.saturating_sub(START_STEPS), next)
                        } else {
                            NextColumns::NONE
                        };
                        // SAFETY: the block exists; the rest is the caller's promise.
                        unsafe {
                            let lanes = columns.lanes::<$rows, $cols>(x, &mut prefetch);
                            add_lanes::<$rows, $cols>(&lanes, self.results(0), block > 0);
                        }
                    },)*
                    (rows, cols) => unreachable!("no tile of {rows} rows by {cols} columns"),
                }
            };
        }
        // One row always uses streams, so at most one column of it remains.
        tiles!(2 x 8 3 x 8 4 x 6 1 x 1 2 x 1 3 x 1 4 x 1);
    }

    /// Adds a block's products to the sums of all tiles of rows; the first block sets them.
    /// Meanwhile prefetches `next`.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for the columns of `self` and a block that exists.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply(self, block: usize, next: Lines) {
        let TaskOperands { tiles, row_tiles, .. } = self.area;
        let columns = self.columns(block);
        let rows = tiles.start(row_tiles.end) - tiles.start(row_tiles.start);
        let (whole, left) = (rows / AVX512_BF16_ROWS, rows % AVX512_BF16_ROWS);
        macro_rules! tiles {
            ($($rows:literal x $cols:literal)*) => {
                |rows: usize, first: usize, count: usize, next: Lines| match (rows, self.cols) {
                    $(($rows, $cols) => {
                        let (x, to) = (self.x(block, first), self.results(first));
                        // SAFETY: the tiles exist; the rest is the caller's promise.
                        unsafe {
                            columns.multiply::<$rows, $cols>(count, x, to, block > 0, next);
                        }
                    })*
                    (rows, cols) => unreachable!("no tile of {rows} rows by {cols} columns"),
                }
            };
        }
        let multiply = tiles!(1 x 6 2 x 6 3 x 6 4 x 6 1 x 1 2 x 1 3 x 1 4 x 1);
        if left > 0 {
            // First, because it takes little time; the others prefetch the next part.
            multiply(left, row_tiles.start + whole, 1, Lines::NONE);
        }
        multiply(AVX512_BF16_ROWS, row_tiles.start, whole, next);
    }
}
