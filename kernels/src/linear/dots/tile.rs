//! The register tile: `R` rows of x times `N` columns.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;

use half::bf16;

use super::{LINE, LINE_UNITS};
use crate::linear::ahead::Asks;
use crate::linear::sizes::RESULT_STRIDE;
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, dot_bf16};
use crate::simd::lanes::{add_quarters, add_to_quarters};

/// Columns of a tile at most.
const MAX_COLS: usize = 8;

/// Some columns along a block of k, and where their sums go.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// The first input of the block of the first column, and elements from a column to the next.
    pub(super) weight: *const bf16,
    pub(super) stride: usize,
    pub(super) inputs: usize,
    /// Whether sums of blocks before are in the results already.
    pub(super) adds: bool,
}

impl Columns {
    /// Adds the products of `R` rows of x with `N` columns to the results at `to`, or sets them.
    ///
    /// # Safety
    /// The machine has AVX512-BF16; the columns exist, `x` is packed in tiles of `R` rows, and `to` has
    /// room for `N` results in each of them, `RESULT_STRIDE` apart.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn multiply<const R: usize, const N: usize>(
        self,
        x: *const f32,
        to: *mut f32,
        ahead: &mut impl Asks,
    ) {
        // SAFETY: this function's own features, and the caller's promise.
        let s = unsafe { Avx512::new() };
        let mut at = At { weight: self.weight, stride: self.stride, x };
        let mut sums = [[_mm512_setzero_ps(); MAX_COLS]; R];
        let (whole, left) = (self.inputs / LINE, self.inputs % LINE);
        // SAFETY: whole lines exist in every column and row; of the last one what is masked is not touched, and
        // packed x has it whole.
        unsafe {
            for _ in 0..whole {
                ahead.step(s);
                at.line::<R, N>(s, u32::MAX, &mut sums);
            }
            if left > 0 {
                at.line::<R, N>(s, (1 << left) - 1, &mut sums);
            }
            self.finish::<R, N>(sums, to);
        }
    }

    /// Adds the lanes of `sums` to the results, or sets these.
    ///
    /// # Safety
    /// As `multiply`.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn finish<const R: usize, const N: usize>(
        self,
        sums: [[__m512; MAX_COLS]; R],
        to: *mut f32,
    ) {
        for four in 0..N.div_ceil(4) {
            let mut columns = [_mm512_setzero_ps(); 4];
            for n in 0..4.min(N - 4 * four) {
                let mut rows = [_mm512_setzero_ps(); 4];
                for r in 0..R {
                    rows[r] = sums[r][4 * four + n];
                }
                columns[n] = add_to_quarters(rows);
            }
            // SAFETY: vectors of the same bits.
            let rows: [__m128; 4] = unsafe { std::mem::transmute(add_quarters(columns)) };
            for r in 0..R {
                // SAFETY: the results have room for these columns.
                unsafe {
                    let to = to.add(r * RESULT_STRIDE + 4 * four);
                    match N - 4 * four {
                        1 => {
                            let before = if self.adds { _mm_load_ss(to) } else { _mm_setzero_ps() };
                            _mm_store_ss(to, _mm_add_ss(before, rows[r]));
                        }
                        2 => {
                            let before = if self.adds {
                                _mm_castsi128_ps(_mm_loadl_epi64(to.cast()))
                            } else {
                                _mm_setzero_ps()
                            };
                            let sum = _mm_castps_si128(_mm_add_ps(before, rows[r]));
                            _mm_storel_epi64(to.cast(), sum);
                        }
                        _ => {
                            let before =
                                if self.adds { _mm_loadu_ps(to) } else { _mm_setzero_ps() };
                            _mm_storeu_ps(to, _mm_add_ps(before, rows[r]));
                        }
                    }
                }
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
    /// Multiplies the line, of which `mask` says which inputs exist, and goes on to the one after it.
    ///
    /// # Safety
    /// As [`Columns::multiply`], for this line.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn line<const R: usize, const N: usize>(
        &mut self,
        s: Avx512,
        mask: u32,
        sums: &mut [[__m512; MAX_COLS]; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); R];
            for r in 0..R {
                rows[r] = s.load(self.x.add(r * LINE_UNITS));
            }
            for n in 0..N {
                let at = self.weight.wrapping_add(n * self.stride).cast();
                let line = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, at));
                for r in 0..R {
                    sums[r][n] = dot_bf16(line, rows[r], sums[r][n]);
                }
            }
        }
        self.weight = self.weight.wrapping_add(LINE);
        self.x = self.x.wrapping_add(R * LINE_UNITS);
    }
}
