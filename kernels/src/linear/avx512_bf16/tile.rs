//! The register tile: `R` rows of x times `N` columns.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::deferred_reduction::{self, DeferredLanes, DeferredReduction};
use super::prefetch::{LinesPerStep, Prefetch, STEP_LINES, pace};
use super::results::{Lanes, MAX_COLS, add_lanes};
use super::{LINE, LINE_UNITS};
use crate::linear::prefetch::Lines;
use crate::linear::sizes::{AVX512_BF16_ROWS, RESULT_STRIDE};
use crate::linear::tuning::DEFERRED_TILES;
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, dot_bf16};

/// Some columns along a block of k.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// First input of the block in the first column. Columns are `stride` elements apart.
    pub(super) weight: *const bf16,
    pub(super) stride: usize,
    pub(super) inputs: usize,
}

impl Columns {
    /// Adds the products of `tiles` tiles of `R` rows with `N` columns to their results; sets the
    /// results if `adds` is false. Meanwhile prefetches `next`.
    ///
    /// # Safety
    /// The conditions of [`Columns::lanes`] and [`add_lanes`] hold for every tile.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn multiply<const R: usize, const N: usize>(
        self,
        tiles: usize,
        x: *const f32,
        to: *mut f32,
        adds: bool,
        next: Lines,
    ) {
        let steps = (self.inputs / LINE / STEP_LINES).max(1);
        let (per_step, needed) = pace(next, steps * tiles);
        let prefetching = needed.div_ceil(steps).min(tiles);
        let quiet = tiles - prefetching;
        // A loop for each pace, since any work of a tile besides its products is measurable.
        let units = self.inputs.div_ceil(LINE) * LINE_UNITS;
        macro_rules! some {
            ($from:expr, $tiles:expr, $per_step:literal) => {{
                let mut prefetch = LinesPerStep::<$per_step>::new(next);
                let mut x = x.wrapping_add($from * R * units);
                let mut to = to.wrapping_add($from * R * RESULT_STRIDE);
                for _ in 0..$tiles {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let lanes = self.lanes::<R, N>(x, &mut prefetch);
                        add_lanes::<R, N>(&lanes, to, adds);
                    }
                    x = x.wrapping_add(R * units);
                    to = to.wrapping_add(R * RESULT_STRIDE);
                }
            }};
        }
        if R == AVX512_BF16_ROWS && N == deferred_reduction::COLS && quiet >= DEFERRED_TILES {
            // SAFETY: the caller's promise, for these tiles.
            unsafe { self.multiply_deferred(quiet, x, to, adds) };
        } else {
            some!(0, quiet, 0);
        }
        match per_step {
            4 => some!(quiet, prefetching, 4),
            6 => some!(quiet, prefetching, 6),
            8 => some!(quiet, prefetching, 8),
            _ => some!(quiet, prefetching, 12),
        }
    }

    /// Multiplies whole tiles like [`Columns::multiply`] without prefetching; the reduction of each
    /// tile is deferred into the next one. This is a separate function so that it takes no
    /// registers from the other loops.
    ///
    /// # Safety
    /// The conditions of [`Columns::multiply`] hold.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply_deferred(
        self,
        tiles: usize,
        mut x: *const f32,
        mut to: *mut f32,
        adds: bool,
    ) {
        let units = self.inputs.div_ceil(LINE) * LINE_UNITS;
        let mut deferred_lanes = DeferredLanes::new();
        let mut reduction = DeferredReduction::new(&mut deferred_lanes, adds);
        for _ in 0..tiles {
            // SAFETY: the caller's promise.
            unsafe {
                let lanes =
                    self.lanes::<AVX512_BF16_ROWS, { deferred_reduction::COLS }>(x, &mut reduction);
                reduction.defer(&lanes, to);
            }
            x = x.wrapping_add(AVX512_BF16_ROWS * units);
            to = to.wrapping_add(AVX512_BF16_ROWS * RESULT_STRIDE);
        }
        reduction.finish();
    }

    /// Returns the products of `R` rows of x with `N` columns, lane by lane.
    ///
    /// # Safety
    /// The machine has AVX512-BF16; the columns exist, and `x` is packed in tiles of `R` rows.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn lanes<const R: usize, const N: usize>(
        self,
        x: *const f32,
        prefetch: &mut impl Prefetch,
    ) -> Lanes<R> {
        let mut sums = [[_mm512_setzero_ps(); MAX_COLS]; R];
        // SAFETY: the caller's promise.
        unsafe { self.add_lanes::<R, N>(x, prefetch, &mut sums) };
        sums
    }

    /// Adds the products of [`Columns::lanes`] to `sums`.
    ///
    /// # Safety
    /// The conditions of [`Columns::lanes`] hold.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn add_lanes<const R: usize, const N: usize>(
        self,
        x: *const f32,
        prefetch: &mut impl Prefetch,
        sums: &mut Lanes<R>,
    ) {
        // SAFETY: this function's own features, and the caller's promise.
        let s = unsafe { Avx512::new() };
        let mut at = At { weight: self.weight, stride: self.stride, x };
        let (whole, left) = (self.inputs / LINE, self.inputs % LINE);
        // SAFETY: whole lines exist in every column and row; masked elements of the last one are
        // not accessed, and packed x has it whole.
        unsafe {
            for _ in 0..whole / STEP_LINES {
                prefetch.step(s);
                // Unrolled by hand to save branches; see `prefetch`.
                at.line::<R, N>(s, u32::MAX, sums, prefetch);
                at.line::<R, N>(s, u32::MAX, sums, prefetch);
                at.line::<R, N>(s, u32::MAX, sums, prefetch);
                at.line::<R, N>(s, u32::MAX, sums, prefetch);
            }
            for _ in 0..whole % STEP_LINES {
                at.line::<R, N>(s, u32::MAX, sums, prefetch);
            }
            if left > 0 {
                at.line::<R, N>(s, (1 << left) - 1, sums, prefetch);
            }
        }
    }
}

/// The next line of some columns and rows.
struct At {
    weight: *const bf16,
    stride: usize,
    x: *const f32,
}

impl At {
    /// Multiplies the line, whose existing inputs are set in `mask`, and advances to the next line.
    ///
    /// # Safety
    /// The conditions of [`Columns::lanes`] hold for this line.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn line<const R: usize, const N: usize>(
        &mut self,
        s: Avx512,
        mask: u32,
        sums: &mut Lanes<R>,
        prefetch: &impl Prefetch,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); R];
            for r in 0..R {
                rows[r] = s.load(self.x.add(r * LINE_UNITS));
            }
            for n in 0..N {
                let at = self.weight.wrapping_add(n * self.stride);
                prefetch.line(s, at.cast());
                let line = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, at.cast()));
                for r in 0..R {
                    sums[r][n] = dot_bf16(line, rows[r], sums[r][n]);
                }
            }
        }
        self.weight = self.weight.wrapping_add(LINE);
        self.x = self.x.wrapping_add(R * LINE_UNITS);
    }
}
