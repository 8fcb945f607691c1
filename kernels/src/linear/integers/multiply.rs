//! Some rows by some panels, over some groups.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::factors::{Factors, whole};
use super::shape::{COLS, PANELS, TILE_ROWS, units_of};
use crate::linear::ahead::Ahead;
use crate::linear::form::Records;
use crate::linear::sizes::RESULT_STRIDE;
use crate::linear::task::Area;
use crate::simd::avx512::Avx512;

/// How far ahead along a panel's records few rows ask for memory.
const AHEAD_BYTES: usize = 1024;
/// Inputs of a step: those of a lane of weights' bytes.
const STEP: usize = 4;

/// Steps of a group.
pub(super) const fn steps(group: usize) -> usize {
    group / STEP
}

/// A packed tile of rows; see `pack`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    count: usize,
    /// Dwords of its first group.
    x: *const u32,
    /// Factors of its first group, and from there to the next.
    factors: Factors,
    factors_stride: usize,
}

impl Rows {
    pub(super) fn of(area: &Area, tile: usize, (group, groups): (usize, usize)) -> Rows {
        let (tiles, first) = (area.tiles, area.tiles.start(tile));
        let x = area.packed.pointer().wrapping_add(first * groups * units_of(group));
        Rows {
            count: tiles.height(tile),
            x: x.cast_const().cast(),
            factors: Factors::of(area, tile, 0),
            factors_stride: Factors::COUNT * tiles.rows,
        }
    }
}

/// Rows times one or two panels, over a range of groups.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) records: Records,
    /// The first panel.
    pub(super) panel: usize,
    pub(super) groups: Range<usize>,
    pub(super) rows: Rows,
    /// Results `[row][RESULT_STRIDE]`, which the first group sets.
    pub(super) out: *mut f32,
}

impl Call {
    /// Adds the products to the results. Without `ahead` the panels' own next lines are asked for.
    ///
    /// # Safety
    /// The machine has AVX-512 with VNNI. The panels, rows and groups exist, packed for weights of 4
    /// bits if `is_four`, and results have room.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn run(self, is_four: bool, panels: usize, ahead: Option<&mut Ahead>) {
        macro_rules! rows {
            ($four:literal, $panels:literal, $($rows:literal)*) => {
                match self.rows.count {
                    // SAFETY: the caller's promise.
                    $($rows => unsafe { self.multiply::<$four, $panels, $rows>(ahead) },)*
                    _ => unreachable!("a tile has at most {TILE_ROWS} rows"),
                }
            };
        }
        const { assert!(TILE_ROWS == 6 && PANELS == 2) };
        match (is_four, panels) {
            (true, PANELS) => rows!(true, 2, 1 2 3 4 5 6),
            (true, _) => rows!(true, 1, 1 2 3 4 5 6),
            (false, PANELS) => rows!(false, 2, 1 2 3 4 5 6),
            (false, _) => rows!(false, 1, 1 2 3 4 5 6),
        }
    }

    /// # Safety
    /// As [`Call::run`], for `P` panels and `R` rows, 4 bits if `FOUR`.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn multiply<const FOUR: bool, const P: usize, const R: usize>(
        self,
        mut ahead: Option<&mut Ahead>,
    ) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        let Call { records, panel, groups, rows, out } = self;
        let group_steps = steps(records.group());
        // Weights of 4 bits have two steps to a vector.
        let per_vector = if FOUR { 2 } else { 1 };
        let mut x = rows.x.wrapping_add(groups.start * 2 * group_steps * R);
        let mut factors = rows.factors.skip(groups.start * rows.factors_stride);
        let mut record: [*const u8; P] =
            std::array::from_fn(|p| records.record_at(panel + p, groups.start));
        for group in groups {
            let mut high = [[_mm512_setzero_si512(); R]; P];
            let mut low = [[_mm512_setzero_si512(); R]; P];
            let mut at = record.map(|record| record.wrapping_add(64));
            for _ in 0..group_steps / per_vector {
                let mut vectors = [_mm512_setzero_si512(); P];
                for p in 0..P {
                    // SAFETY: the group's vectors exist.
                    vectors[p] = unsafe { _mm512_loadu_si512(at[p].cast()) };
                    if ahead.is_none() {
                        _mm_prefetch::<_MM_HINT_T0>(at[p].wrapping_add(AHEAD_BYTES).cast());
                    }
                    at[p] = at[p].wrapping_add(64);
                }
                for half in 0..per_vector {
                    if let Some(ahead) = &mut ahead {
                        ahead.step(s);
                    }
                    let mut weights = [_mm512_setzero_si512(); P];
                    for p in 0..P {
                        weights[p] = bytes::<FOUR>(vectors[p], half == 1);
                    }
                    for r in 0..R {
                        // SAFETY: the group's packed rows have this step.
                        let [a, b] = [0, 1].map(|digit| unsafe { *x.add(digit * R + r) });
                        let (a, b) = (_mm512_set1_epi32(a as i32), _mm512_set1_epi32(b as i32));
                        for p in 0..P {
                            high[p][r] = _mm512_dpbusd_epi32(high[p][r], weights[p], a);
                            low[p][r] = _mm512_dpbusd_epi32(low[p][r], weights[p], b);
                        }
                    }
                    x = x.wrapping_add(2 * R);
                }
            }
            for p in 0..P {
                // SAFETY: a record starts with its scales and minimums; the group has factors of all
                // rows, and results have room for whole panels.
                unsafe {
                    let scale = scales(record[p]);
                    for r in 0..R {
                        let total = out.add(r * RESULT_STRIDE + p * COLS);
                        let before =
                            if group == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(total) };
                        let part = whole(high[p][r], low[p][r]);
                        _mm512_storeu_ps(total, factors.add::<FOUR>(r, before, part, scale));
                    }
                }
                record[p] = record[p].wrapping_add(records.record_bytes());
            }
            factors = factors.skip(rows.factors_stride);
        }
    }
}

/// Scales and minimums of a record's columns.
///
/// # Safety
/// The record exists.
#[inline]
#[target_feature(enable = "f16c,avx512f")]
pub(super) unsafe fn scales(record: *const u8) -> (__m512, __m512) {
    // SAFETY: a record starts with them.
    let [scale, min] = [0, 2 * COLS].map(|at| unsafe { _mm256_loadu_si256(record.add(at).cast()) });
    (_mm512_cvtph_ps(scale), _mm512_cvtph_ps(min))
}

/// Unsigned bytes of a step: the low or the high nibbles, or signed bytes with 128 added.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn bytes<const FOUR: bool>(vector: __m512i, high: bool) -> __m512i {
    if FOUR {
        let vector = if high { _mm512_srli_epi32::<4>(vector) } else { vector };
        _mm512_and_si512(vector, _mm512_set1_epi32(0x0f0f_0f0f))
    } else {
        _mm512_xor_si512(vector, _mm512_set1_epi32(0x8080_8080_u32 as i32))
    }
}
