//! What the vectors of a record hold.

use std::arch::x86_64::*;

use super::shape::COLS;

/// Inputs of a step: those of a lane of weights' bytes.
const STEP: usize = 4;

/// Steps of a group.
pub(super) const fn steps(group: usize) -> usize {
    group / STEP
}

/// Vectors of a group's weights.
pub(super) const fn vectors(group: usize, is_four: bool) -> usize {
    if is_four { steps(group) / 2 } else { steps(group) }
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

/// A step's weights of 4 bits, those of the low or of the high nibbles: 16 times each, and as they
/// are.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn nibbles(vector: __m512i, high: bool) -> (__m512i, __m512i) {
    let low = _mm512_set1_epi32(0x0f0f_0f0f);
    if high {
        let times_16 = _mm512_andnot_si512(low, vector);
        (times_16, _mm512_srli_epi32::<4>(times_16))
    } else {
        let weights = _mm512_and_si512(low, vector);
        (_mm512_slli_epi32::<4>(weights), weights)
    }
}

/// A step's signed bytes with 128 added.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn unsigned(vector: __m512i) -> __m512i {
    _mm512_xor_si512(vector, _mm512_set1_epi32(0x8080_8080_u32 as i32))
}
