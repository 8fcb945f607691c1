//! Kernel for five to eight rows: all rows at once, and lines prefetched one by one.
//!
//! Such a tile waits for memory most of its time, and if lines are prefetched in bursts, the
//! processor drops those for which it has no free buffers. Therefore two lines are prefetched along
//! with each line that is multiplied, a later one and an even later one, so that every line is
//! prefetched twice. If packed x fits in the first-level cache, one column after the other is
//! multiplied along all of k, which reads memory sequentially, and the later of the two lines is
//! prefetched into the second-level cache. Otherwise a pair of columns is multiplied along a block,
//! followed by some more pairs along the same block before the next block.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::results::{Lanes, MAX_COLS, add_lanes};
use super::tile::Columns;
use super::{LINE, LINE_UNITS};
use crate::linear::reader::Plain;
use crate::linear::sizes::AVX512_BF16_ROWS;
use crate::linear::task::TaskOperands;
use crate::linear::tuning::{
    ALL_ROWS_FAR_COLS, ALL_ROWS_GROUP_COLS, ALL_ROWS_NEAR_COLS, ALL_ROWS_X_LEN,
    ONE_STREAM_PREFETCH_BYTES,
};
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, dot_bf16};

/// Columns of a tile if columns are multiplied along blocks.
const COLS: usize = 2;

/// Returns true if a pass of `rows` rows is processed by this kernel.
pub(super) fn fits(rows: usize) -> bool {
    rows > AVX512_BF16_ROWS && rows <= 2 * AVX512_BF16_ROWS
}

/// Computes the sums of a task's columns, except the last one if it cannot form a pair. Returns the
/// columns that remain.
///
/// # Safety
/// The machine has AVX512-BF16; x is packed by lines in two tiles of rows ([`fits`]), columns
/// exist, and the scratch is the task's.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn sums(reader: Plain<bf16>, area: &TaskOperands) -> Range<usize> {
    let pass = Pass { reader, area };
    let x_fits = area.tiles.rows * super::units(reader.inputs()) <= ALL_ROWS_X_LEN;
    macro_rules! rows {
        ($($rows:literal)*) => {
            match area.tiles.rows {
                $(
                    // SAFETY: the caller's promise, for these rows.
                    $rows if x_fits => unsafe { pass.along_all::<$rows>() },
                    // SAFETY: as above.
                    $rows => unsafe { pass.along_blocks::<$rows>() },
                )*
                rows => unreachable!("{rows} rows are more or fewer than five to eight"),
            }
        };
    }
    rows!(5 6 7 8)
}

struct Pass<'a> {
    reader: Plain<bf16>,
    area: &'a TaskOperands,
}

impl Pass<'_> {
    /// Multiplies one column after the other along all of k.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn along_all<const R: usize>(&self) -> Range<usize> {
        let Range { start, end } = self.area.cols;
        for col in start..end {
            for block in 0..self.blocks() {
                let at = self.at(col, block).cast::<u8>();
                let addresses = [
                    at.wrapping_add(ONE_STREAM_PREFETCH_BYTES),
                    at.wrapping_add(2 * ONE_STREAM_PREFETCH_BYTES),
                ];
                // SAFETY: column and block exist; the rest is the caller's promise.
                unsafe { self.multiply::<R, 1>(col, block, addresses) };
            }
        }
        end..end
    }

    /// Multiplies pairs of columns, one block of some columns after the other.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for `R` rows.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn along_blocks<const R: usize>(&self) -> Range<usize> {
        let Range { start, end } = self.area.cols;
        let pairs_end = end - (end - start) % COLS;
        let blocks = self.blocks();
        for first in (start..pairs_end).step_by(ALL_ROWS_GROUP_COLS) {
            let group = first..pairs_end.min(first + ALL_ROWS_GROUP_COLS);
            for block in 0..blocks {
                // Address of the given column, which may continue in the next block or group.
                let after = |col: usize| {
                    let (col, block) = match col {
                        col if col < group.end => (col, block),
                        col if block + 1 < blocks => (col - group.len(), block + 1),
                        col => (col, 0),
                    };
                    self.at(col, block).cast::<u8>()
                };
                for col in group.clone().step_by(COLS) {
                    let addresses =
                        [after(col + ALL_ROWS_NEAR_COLS), after(col + ALL_ROWS_FAR_COLS)];
                    // SAFETY: columns and block exist; the rest is the caller's promise.
                    unsafe { self.multiply::<R, COLS>(col, block, addresses) };
                }
            }
        }
        pairs_end..end
    }

    /// Returns the number of inputs in a block.
    fn inputs(&self) -> usize {
        self.area.tiles.block / LINE_UNITS * LINE
    }

    fn blocks(&self) -> usize {
        self.reader.inputs().div_ceil(self.inputs())
    }

    /// Returns the first weight of a block of a column, which need not exist.
    fn at(&self, col: usize, block: usize) -> *const bf16 {
        self.reader.row(0).wrapping_add(col * self.reader.inputs() + block * self.inputs())
    }

    /// Returns packed x of a block and a tile of rows.
    fn x(&self, block: usize, tile: usize) -> *const f32 {
        let TaskOperands { packed, tiles, .. } = self.area;
        let to = tiles.packed_before(super::units(self.reader.inputs()), block, tiles.start(tile));
        packed.pointer().wrapping_add(to)
    }

    /// Adds the products of a block with `N` columns from `col` on to their results; the first
    /// block sets them.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold for `R` rows; columns and block exist.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply<const R: usize, const N: usize>(
        &self,
        col: usize,
        block: usize,
        [near, far]: [*const u8; 2],
    ) {
        let columns = Columns {
            weight: self.at(col, block),
            stride: self.reader.inputs(),
            inputs: self.inputs().min(self.reader.inputs() - block * self.inputs()),
        };
        let tile = Tile { columns, x: self.x(block, 0), rest: self.x(block, 1), near, far };
        let to = self.area.results().wrapping_add(col - self.area.cols.start);
        // SAFETY: the caller's promise; results have space for all columns of a task.
        unsafe { add_lanes::<R, N>(&tile.lanes::<R, N>(), to, block > 0) };
    }
}

/// The next line of some columns and of all rows.
struct Tile {
    columns: Columns,
    /// Packed x of the first tile of rows. `rest` is that of the other tile.
    x: *const f32,
    rest: *const f32,
    /// Lines to prefetch: `near` is read sooner than `far`.
    near: *const u8,
    far: *const u8,
}

impl Tile {
    /// Returns the products along a block, lane by lane.
    ///
    /// # Safety
    /// The machine has AVX512-BF16; columns and packed x of `R` rows exist.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn lanes<const R: usize, const N: usize>(mut self) -> Lanes<R> {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        let mut sums = [[_mm512_setzero_ps(); MAX_COLS]; R];
        let left = self.columns.inputs % LINE;
        // SAFETY: whole lines exist in all columns and in packed x; masked elements of the last one
        // are not accessed.
        unsafe {
            for _ in 0..self.columns.inputs / LINE {
                self.line::<R, N>(s, u32::MAX, &mut sums);
            }
            if left > 0 {
                self.line::<R, N>(s, (1 << left) - 1, &mut sums);
            }
        }
        sums
    }

    /// Multiplies the line, whose existing inputs are set in `mask`, and advances to the next line.
    ///
    /// # Safety
    /// The conditions of [`Tile::lanes`] hold for this line.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn line<const R: usize, const N: usize>(
        &mut self,
        s: Avx512,
        mask: u32,
        sums: &mut Lanes<R>,
    ) {
        let Columns { weight, stride, .. } = self.columns;
        let mut weights = [_mm512_setzero_ps(); N];
        for n in 0..N {
            let bytes = n * stride * size_of::<bf16>();
            s.prefetch(self.near.wrapping_add(bytes));
            let far = self.far.wrapping_add(bytes);
            if N == 1 {
                s.prefetch_l2(far)
            } else {
                s.prefetch(far)
            }
            let at = weight.wrapping_add(n * stride).cast();
            // SAFETY: the caller's promise.
            weights[n] = _mm512_castsi512_ps(unsafe { _mm512_maskz_loadu_epi16(mask, at) });
        }
        for r in 0..R {
            let (x, row) =
                if r < AVX512_BF16_ROWS { (self.x, r) } else { (self.rest, r - AVX512_BF16_ROWS) };
            // SAFETY: the caller's promise.
            unsafe {
                let x = s.load(x.add(row * LINE_UNITS));
                for n in 0..N {
                    sums[r][n] = dot_bf16(weights[n], x, sums[r][n]);
                }
            }
        }
        self.columns.weight = weight.wrapping_add(LINE);
        self.x = self.x.wrapping_add(AVX512_BF16_ROWS * LINE_UNITS);
        self.rest = self.rest.wrapping_add((R - AVX512_BF16_ROWS) * LINE_UNITS);
        self.near = self.near.wrapping_add(LINE * size_of::<bf16>());
        self.far = self.far.wrapping_add(LINE * size_of::<bf16>());
    }
}
