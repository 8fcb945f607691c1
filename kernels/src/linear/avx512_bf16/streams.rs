//! Kernel for one to four rows: a task's columns are divided into one, two or four runs, which are
//! read concurrently, each from end to end.
//!
//! Memory is therefore read in as many streams as there are runs, and no stream ends within a task.
//! If neighbouring columns were read concurrently, each would be a stream that ends with the
//! column, and the processor would recognise the next one late. Few streams are best for memory.
//! But columns that are multiplied together share the loads of x, and if several rows do not stay
//! in the first-level cache, four streams read x less often. A stream also starts slowly, so short
//! runs are not divided.

#![allow(clippy::needless_range_loop, reason = "rows, runs and columns are clearer by index")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;

use super::four_streams::{self, STREAMS};
use super::prefetch::{AtDistance, AtTwoDistances, Prefetch};
use super::results::{Lanes, add_lanes, four_columns};
use super::tile::Columns;
use super::{LINE, LINE_UNITS};
use crate::linear::reader::Plain;
use crate::linear::sizes::{AVX512_BF16_ROWS, RESULT_STRIDE};
use crate::linear::task::TaskOperands;
use crate::linear::tuning::{
    ONE_STREAM_PREFETCH_BYTES, STREAMS_PREFETCH_BYTES, STREAMS_X_BYTES, TWO_STREAMS_BYTES,
};
use crate::processor::is_zen_5;

/// Maximum number of blocks of columns whose lanes are kept until they are added.
const MOST_BLOCKS: usize = 32;

/// Returns the number of concurrent runs that is best for a task; `None` if it should not be
/// divided into runs.
fn runs(reader: Plain<bf16>, area: &TaskOperands) -> Option<usize> {
    let rows = area.tiles.rows;
    let x_fits = rows * super::units(reader.inputs()) * size_of::<u32>() <= STREAMS_X_BYTES;
    let bytes = area.cols.len() * reader.inputs() * size_of::<bf16>();
    match rows {
        1 | 2 if is_zen_5() => Some(if bytes >= TWO_STREAMS_BYTES { 2 } else { 1 }),
        3 | 4 if is_zen_5() => Some(if x_fits { 1 } else { 4 }),
        _ => (rows == 1 || rows <= AVX512_BF16_ROWS && x_fits).then_some(1),
    }
}

/// Computes the sums of a task's columns, except those that fill no run or are better multiplied in
/// tiles of neighbouring columns. Returns the columns that remain.
///
/// # Safety
/// The machine has AVX512-BF16; x is packed by lines, columns exist, and the scratch is the task's.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn sums(reader: Plain<bf16>, area: &TaskOperands) -> Range<usize> {
    let Some(runs) = runs(reader, area) else { return area.cols.clone() };
    let streams = Streams { reader, area };
    macro_rules! streams {
        ($prefetch:expr, $runs:literal x $cols:literal, $($rows:literal)*) => {
            match area.tiles.rows {
                // SAFETY: the caller's promise, for these rows.
                $($rows => unsafe { streams.sums::<$rows, $runs, $cols>($prefetch) },)*
                rows => unreachable!("no {runs} streams for {rows} rows"),
            }
        };
    }
    match (runs, area.tiles.rows) {
        (1, _) if is_zen_5() => streams!(AtDistance::<ONE_STREAM_PREFETCH_BYTES>, 1 x 8, 1 2 3 4),
        // Zen 4 needs more requests in flight than its first-level cache allows; on Zen 5 the
        // additional requests would displace others.
        (1, _) => streams!(AtTwoDistances::<ONE_STREAM_PREFETCH_BYTES>, 1 x 8, 1 2 3 4),
        (2, _) => streams!(AtDistance::<STREAMS_PREFETCH_BYTES>, 2 x 4, 1 2),
        // SAFETY: the caller's promise, for these rows.
        (_, 3) => unsafe { streams.four::<3>() },
        // SAFETY: as above.
        (_, 4) => unsafe { streams.four::<4>() },
        (_, rows) => unreachable!("no {runs} streams for {rows} rows"),
    }
}

#[derive(Clone, Copy)]
struct Streams<'a> {
    reader: Plain<bf16>,
    area: &'a TaskOperands,
}

impl Streams<'_> {
    /// Multiplies `R` rows by `N` runs. The lanes of `C` columns of each run are added together.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn sums<const R: usize, const N: usize, const C: usize>(
        self,
        mut prefetch: impl Prefetch,
    ) -> Range<usize> {
        let Range { start, end } = self.area.cols;
        let run = (end - start) / N;
        let together = if self.blocks() <= MOST_BLOCKS { run - run % C } else { 0 };
        // SAFETY: all of these columns exist.
        let mut lanes = |columns: Columns, x| unsafe { columns.lanes::<R, N>(x, &mut prefetch) };
        // SAFETY: as above.
        unsafe {
            for col in (0..together).step_by(C) {
                self.some_columns::<R, N, C>(start + col, run, &mut lanes);
            }
            for col in together..run {
                self.one_column::<R, N>(start + col, run, &mut lanes);
            }
        }
        start + run * N..end
    }

    /// Multiplies `R` rows by four runs.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn four<const R: usize>(self) -> Range<usize>
    where
        Lanes<R>: four_streams::Rows,
    {
        let Range { start, end } = self.area.cols;
        let run = (end - start) / STREAMS;
        // SAFETY: all of these columns exist.
        let mut lanes = |columns, x| unsafe { four_streams::lanes::<R>(columns, x) };
        for col in 0..run {
            // SAFETY: as above.
            unsafe { self.one_column::<R, STREAMS>(start + col, run, &mut lanes) };
        }
        start + run * STREAMS..end
    }

    /// Computes the sums of `N` columns, `run` apart, from `col` on.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for `R` rows; these columns exist, and `lanes` multiplies
    /// `N` columns.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn one_column<const R: usize, const N: usize>(
        self,
        col: usize,
        run: usize,
        lanes: &mut impl FnMut(Columns, *const f32) -> Lanes<R>,
    ) {
        const { assert!(R <= 4 && N <= 4, "a quarter of a vector for each row") };
        let mut sums = _mm512_setzero_ps();
        for block in 0..self.blocks() {
            let lanes = lanes(self.columns(block, col, run), self.x(block));
            sums = _mm512_add_ps(sums, four_columns(&lanes, 0));
        }
        // SAFETY: both types are sixteen floats.
        let sums: [[f32; 4]; 4] = unsafe { std::mem::transmute(sums) };
        for row in 0..R {
            for n in 0..N {
                // SAFETY: results have space for all columns of a task.
                unsafe { *self.results(col + n * run).add(row * RESULT_STRIDE) = sums[row][n] };
            }
        }
    }

    /// Computes the sums like [`Streams::one_column`] for `C` consecutive columns of each run,
    /// whose lanes are added together: short columns end often.
    ///
    /// # Safety
    /// The conditions of [`Streams::one_column`] hold for all of these columns; there are no more
    /// than [`MOST_BLOCKS`] blocks.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn some_columns<const R: usize, const N: usize, const C: usize>(
        self,
        first: usize,
        run: usize,
        lanes: &mut impl FnMut(Columns, *const f32) -> Lanes<R>,
    ) {
        let mut kept = [const { MaybeUninit::<[[[__m512; C]; R]; N]>::uninit() }; MOST_BLOCKS];
        let blocks = self.blocks();
        for col in 0..C {
            for (block, kept) in kept.iter_mut().enumerate().take(blocks) {
                let lanes = lanes(self.columns(block, first + col, run), self.x(block));
                for row in 0..R {
                    for n in 0..N {
                        // SAFETY: a place within the array.
                        unsafe {
                            (&raw mut (*kept.as_mut_ptr())[n][row][col]).write(lanes[row][n])
                        };
                    }
                }
            }
        }
        for (block, kept) in kept.iter().enumerate().take(blocks) {
            // SAFETY: all lanes of these blocks were written.
            let kept = unsafe { kept.assume_init_ref() };
            for n in 0..N {
                let to = self.results(first + n * run);
                // SAFETY: results have space for all columns of a task.
                unsafe { add_lanes::<R, C>(&widened(kept[n]), to, block > 0) };
            }
        }
    }

    fn blocks(self) -> usize {
        super::units(self.reader.inputs()).div_ceil(self.area.tiles.block)
    }

    /// Returns columns `run` apart, from `first` on, along a block.
    fn columns(self, block: usize, first: usize, run: usize) -> Columns {
        let inputs = self.reader.inputs();
        let size = self.area.tiles.block / LINE_UNITS * LINE;
        Columns {
            weight: self.reader.row(first).wrapping_add(block * size),
            stride: run * inputs,
            inputs: size.min(inputs - block * size),
        }
    }

    /// Returns packed x of a block.
    fn x(self, block: usize) -> *const f32 {
        let TaskOperands { packed, tiles, .. } = self.area;
        let units = super::units(self.reader.inputs());
        packed.pointer().wrapping_add(tiles.packed_before(units, block, 0))
    }

    /// Returns the sum of the first row with a column.
    fn results(self, col: usize) -> *mut f32 {
        self.area.results().wrapping_add(col - self.area.cols.start)
    }
}

/// Pads the lanes of some columns to those of a tile of the maximum number of columns.
fn widened<const R: usize, const C: usize>(lanes: [[__m512; C]; R]) -> Lanes<R> {
    lanes.map(|row| std::array::from_fn(|col| row[col % C]))
}
