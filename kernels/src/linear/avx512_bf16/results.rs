//! Reduction of the lanes of a register tile to its results. Lanes are added within quarters first:
//! shuffles within quarters take less time than those across them, and there are four times as many
//! vectors before the addition as after.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;

use crate::linear::sizes::RESULT_STRIDE;
use crate::simd::lanes::{add_quarters, add_to_quarters};

/// Maximum number of columns in a tile.
pub(super) const MAX_COLS: usize = 8;

/// Sums of `R` rows and some columns, lane by lane.
pub(super) type Lanes<const R: usize> = [[__m512; MAX_COLS]; R];

/// Adds the lanes of `R` rows of `N` columns to the results at `to`; sets the results if `adds` is
/// false.
///
/// # Safety
/// The machine has AVX-512; `to` has space for `N` results in each row, `RESULT_STRIDE` apart.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn add_lanes<const R: usize, const N: usize>(
    lanes: &Lanes<R>,
    to: *mut f32,
    adds: bool,
) {
    // SAFETY: the caller's promise; these are all columns.
    unsafe {
        for first in (0..N / 4 * 4).step_by(4) {
            fours::<R>(lanes, first, to.add(first), adds);
        }
        match N % 4 {
            0 => {}
            1 => one::<R>(lanes, N - 1, to.add(N - 1), adds),
            2 => twos::<R>(lanes, N - 2, to.add(N - 2), adds),
            _ => const { assert!(N % 4 < 3, "fours of columns, and one or two more") },
        }
    }
}

/// Adds the lanes of columns `first..first + 4` as [`add_lanes`] does.
///
/// # Safety
/// The conditions of [`add_lanes`] hold.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn fours<const R: usize>(lanes: &Lanes<R>, first: usize, to: *mut f32, adds: bool) {
    let sums = quarters(four_columns(lanes, first));
    for row in 0..R {
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.add(row * RESULT_STRIDE);
            let before = if adds { _mm_loadu_ps(to) } else { _mm_setzero_ps() };
            _mm_storeu_ps(to, _mm_add_ps(before, sums[row]));
        }
    }
}

/// Returns the sums of columns `first..first + 4`: a quarter for each row.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn four_columns<const R: usize>(lanes: &Lanes<R>, first: usize) -> __m512 {
    let mut rows = [_mm512_setzero_ps(); 4];
    for row in 0..R {
        rows[row] = add_quarters(std::array::from_fn(|i| lanes[row][first + i]));
    }
    add_to_quarters(rows)
}

/// Adds the lanes of columns `first` and `first + 1` as [`add_lanes`] does, for two rows at once.
///
/// # Safety
/// The conditions of [`add_lanes`] hold.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn twos<const R: usize>(lanes: &Lanes<R>, first: usize, to: *mut f32, adds: bool) {
    let none = _mm512_setzero_ps();
    let mut pairs = [none; 4];
    for pair in 0..R.div_ceil(2) {
        let (row, next) = (
            lanes[2 * pair],
            if 2 * pair + 1 < R { lanes[2 * pair + 1] } else { [none; MAX_COLS] },
        );
        pairs[pair] = add_quarters([row[first], row[first + 1], next[first], next[first + 1]]);
    }
    let sums = quarters(add_to_quarters(pairs));
    for row in 0..R {
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.add(row * RESULT_STRIDE).cast::<f64>();
            let before = if adds { _mm_castpd_ps(_mm_load_sd(to)) } else { _mm_setzero_ps() };
            let before = if row % 2 == 0 { before } else { _mm_movelh_ps(before, before) };
            let sum = _mm_castps_pd(_mm_add_ps(before, sums[row / 2]));
            if row % 2 == 0 {
                _mm_storel_pd(to, sum)
            } else {
                _mm_storeh_pd(to, sum)
            };
        }
    }
}

/// Adds the lanes of column `col` as [`add_lanes`] does.
///
/// # Safety
/// The conditions of [`add_lanes`] hold.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn one<const R: usize>(lanes: &Lanes<R>, col: usize, to: *mut f32, adds: bool) {
    let none = _mm512_setzero_ps();
    for first in (0..R).step_by(4) {
        let mut rows = [none; 4];
        for row in first..R.min(first + 4) {
            rows[row - first] = lanes[row][col];
        }
        let sums = quarters(add_to_quarters([add_quarters(rows), none, none, none]))[0];
        // SAFETY: both types are four floats.
        let sums: [f32; 4] = unsafe { std::mem::transmute(sums) };
        for row in first..R.min(first + 4) {
            // SAFETY: the caller's promise.
            unsafe {
                let to = to.add(row * RESULT_STRIDE);
                *to = if adds { *to } else { 0.0 } + sums[row - first];
            }
        }
    }
}

fn quarters(sums: __m512) -> [__m128; 4] {
    // SAFETY: both types are sixteen floats.
    unsafe { std::mem::transmute(sums) }
}
