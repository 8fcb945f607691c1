//! Sums of the lanes of several vectors at once, in two steps: within quarters (`add_quarters`),
//! then across them. The order in which lanes are added does not depend on a vector's place.

#![allow(clippy::needless_range_loop, reason = "pairs of vectors are clearer by index")]

use std::arch::x86_64::*;

/// Returns in quarter `i` four sums of lanes of vector `i`: lanes eight apart are added, then those
/// four apart.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn add_to_quarters(v: [__m512; 4]) -> __m512 {
    let mut halves = [_mm512_setzero_ps(); 2];
    for i in 0..2 {
        let (a, b) = (v[2 * i], v[2 * i + 1]);
        let crossed = _mm512_shuffle_f32x4::<0b01_00_11_10>(a, b);
        halves[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), crossed);
    }
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(halves[0], halves[1]),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(halves[0], halves[1]),
    )
}

/// Returns in lane `j` of each quarter the sum of the four lanes of that quarter of vector `j`:
/// lanes two apart are added, then neighbours.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn add_quarters(v: [__m512; 4]) -> __m512 {
    let mut pairs = [_mm512_setzero_ps(); 2];
    for i in 0..2 {
        let (a, b) = (v[2 * i], v[2 * i + 1]);
        let crossed = _mm512_shuffle_ps::<0b01_00_11_10>(a, b);
        pairs[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), crossed);
    }
    _mm512_add_ps(
        _mm512_shuffle_ps::<0b10_00_10_00>(pairs[0], pairs[1]),
        _mm512_shuffle_ps::<0b11_01_11_01>(pairs[0], pairs[1]),
    )
}
