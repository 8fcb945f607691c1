//! A task of a linear: the sums of some columns and rows, and their conversion to outputs.

use std::ops::Range;

use half::bf16;

use super::direct::{Rows, direct, panels};
use super::epilogue::Epilogue;
use super::prefetch::Lines;
use super::reader::{
    CodedRecords, Int4Records, Int8Records, Plain, PlainBf16, PlainF32, Records, WeightReader,
};
use super::rows::RowTiles;
use super::sizes::{BLOCK_UNITS, PANELS, RESULT_STRIDE, results_len};
use super::tiled::{Parts, TILE_LEN, tiled};
use super::tuning::{L2_X_LEN, OUTPUT_PREFETCH_ROWS};
use crate::number::Number;
use crate::scratch::SharedPointer;
use crate::simd::{OutOfLine, Simd};
use crate::variant::SimdTask;
use model::quantized_format::Bits;

/// Operands of a task.
#[derive(Debug, Clone)]
pub struct TaskOperands {
    pub(super) packed: SharedPointer<f32>,
    /// Sums of packed x over groups.
    pub(super) sums: SharedPointer<f32>,
    pub(super) tiles: RowTiles,
    pub(super) row_tiles: Range<usize>,
    pub(super) cols: Range<usize>,
    /// Scratch of the thread: an expanded block, the sums `[row of the task][RESULT_STRIDE]`, and
    /// the memory of `unfinished`.
    pub(super) scratch: *mut f32,
}

impl TaskOperands {
    pub(super) fn results(&self) -> *mut f32 {
        self.scratch.wrapping_add(TILE_LEN)
    }

    /// Returns the memory for sums that are not yet results: the chains of `avx512`, the tiles of
    /// `amx`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn unfinished(&self) -> *mut f32 {
        self.results().wrapping_add(results_len())
    }

    /// Returns runs of blocks of k with `units` units each, whose packed x stays in the
    /// second-level cache while all columns use it, each with true if it is the last.
    #[inline(always)]
    pub(super) fn runs(
        &self,
        units: usize,
        blocks: usize,
    ) -> impl Iterator<Item = (Range<usize>, bool)> {
        let run = (L2_X_LEN / (units * self.tiles.rows)).max(1);
        (0..blocks).step_by(run).map(move |first| {
            let end = blocks.min(first + run);
            (first..end, end == blocks)
        })
    }

    /// Returns the lines of packed x of the block in the next run that corresponds to `block`; a
    /// row has `units` units. The last panels of a run prefetch them, since they come from the
    /// third-level cache, or from the core that packed them.
    #[inline(always)]
    pub(super) fn x_after(&self, run: &Range<usize>, block: usize, units: usize) -> Lines {
        let first = (block + run.len()) * self.tiles.block;
        if first >= units {
            return Lines::NONE;
        }
        let len = self.tiles.block.min(units - first) * self.tiles.rows;
        let at = self.packed.pointer().wrapping_add(first * self.tiles.rows).cast_const();
        Lines { at: at.cast(), stride: 0, rows: 1, lines: len * size_of::<f32>() / 64 }
    }

    #[inline(always)]
    fn sum<S: Simd, W: WeightReader<S>>(&self, s: S, reader: W) {
        let first = self.cols.start / S::LANES;
        let end = self.cols.end.div_ceil(S::LANES);
        let mut panel = first;
        // Portable code expands grouped weights faster to memory than to registers.
        if const { !(S::IS_PORTABLE && W::GROUPED) } && self.tiles.rows <= S::DIRECT_ROWS {
            let rows = Rows {
                x: self.packed.pointer(),
                sums: self.sums.pointer(),
                out: self.results(),
                stride: RESULT_STRIDE,
                scratch: self.scratch,
            };
            let step = panels(self.tiles.rows, W::GROUPED);
            while panel + step <= end && reader.is_full(panel + step - 1) {
                let out = rows.out.wrapping_add((panel - first) * S::LANES);
                // SAFETY: the panels are full; packed rows, sums and results are the task's.
                unsafe { direct(s, reader, panel, self.tiles.rows, Rows { out, ..rows }) };
                panel += step;
            }
        }
        // `tiled` writes whole register tiles, which fit the results only at multiples of their own
        // width.
        let start = if panel == end { end } else { panel - (panel - first) % PANELS };
        let blocks = reader.units().div_ceil(BLOCK_UNITS);
        for (run, is_last) in self.runs(BLOCK_UNITS, blocks) {
            let (first_block, blocks_end) = (run.start, run.end);
            let visits = (start..end)
                .step_by(PANELS)
                .flat_map(|panel| (first_block..blocks_end).map(move |block| (panel, block)));
            for (panel, block) in visits {
                let next = if block + 1 < blocks_end {
                    reader.lines(panel, PANELS.min(end - panel), block + 1)
                } else if panel + PANELS < end {
                    reader.lines(panel + PANELS, PANELS.min(end - panel - PANELS), first_block)
                } else if !is_last {
                    reader.lines(start, PANELS.min(end - start), blocks_end)
                } else {
                    Lines::NONE
                };
                let is_last_panel = panel + PANELS >= end;
                let x = if is_last_panel {
                    self.x_after(&run, block, reader.units())
                } else {
                    Lines::NONE
                };
                let parts = Parts {
                    x: self.packed.pointer(),
                    sums: self.sums.pointer(),
                    tiles: self.tiles,
                    first_tile: self.row_tiles.start,
                    end_tile: self.row_tiles.end,
                    out: self.results().wrapping_add((panel - first) * S::LANES),
                    stride: RESULT_STRIDE,
                    scratch: self.scratch,
                };
                // SAFETY: panels and block exist; packed rows, sums and results are the task's.
                unsafe { tiled(s, reader, panel, block, parts, [next, x]) };
            }
        }
    }
}

/// The sums of a task, with the weights read by `P`.
#[derive(Debug, Clone)]
pub struct Sums<P> {
    pub(super) reader: P,
    pub(super) area: TaskOperands,
}

impl SimdTask for Sums<Plain<f32>> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.area.sum(s, PlainF32(self.reader));
    }
}

impl SimdTask for Sums<Plain<bf16>> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.area.sum(s, PlainBf16(self.reader));
    }
}

impl SimdTask for Sums<Records> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Sums { reader, area } = self;
        match reader.bits() {
            Bits::Four => s.out_of_line(Sums { reader: Int4Records(reader), area }),
            Bits::Eight => s.out_of_line(Sums { reader: Int8Records(reader), area }),
            _ => s.out_of_line(Sums { reader: CodedRecords(reader), area }),
        }
    }
}

impl<S: Simd, W: WeightReader<S>> OutOfLine<S> for Sums<W> {
    #[inline(always)]
    fn run(self, s: S) {
        self.area.sum(s, self.reader);
    }
}

/// Bias, activation and rounding of a task's sums.
#[derive(Debug)]
pub struct EpilogueTask<T> {
    pub(super) area: TaskOperands,
    pub(super) n: usize,
    pub(super) bias: Option<*const f32>,
    pub(super) epilogue: Epilogue<T>,
    /// Output row of each row, if the outputs are in another order.
    pub(super) output_rows: Option<*const u32>,
}

impl<T: Number> SimdTask for EpilogueTask<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let EpilogueTask { area, n, bias, epilogue, output_rows } = self;
        let cols = area.cols.clone();
        let first_row = area.tiles.start(area.row_tiles.start);
        for row in first_row..area.tiles.start(area.row_tiles.end) {
            // SAFETY: the sums of this row are complete; row and columns are within the outputs,
            // and there is an output row for every row.
            unsafe {
                let sums = area.results().add((row - first_row) * RESULT_STRIDE);
                let bias = bias.map(|bias| bias.add(cols.start));
                let output_row = match output_rows {
                    None => {
                        let next = row + OUTPUT_PREFETCH_ROWS;
                        epilogue.prefetch(s, next * n + cols.start, cols.len());
                        row
                    }
                    Some(output_rows) => *output_rows.add(row) as usize,
                };
                epilogue.finish(s, sums, bias, output_row * n + cols.start, cols.len());
            }
        }
    }
}
