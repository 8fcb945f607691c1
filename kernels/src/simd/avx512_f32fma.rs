//! Vectors of quarters: sixteen bytes each of four items that are stored separately in memory.

use std::arch::x86_64::*;

/// Returns vectors whose vector `q` holds quarter `q` of each input vector, in turn.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose(v: [__m512i; 4]) -> [__m512i; 4] {
    let low = [
        _mm512_shuffle_i64x2::<0b01_00_01_00>(v[0], v[1]),
        _mm512_shuffle_i64x2::<0b01_00_01_00>(v[2], v[3]),
    ];
    let high = [
        _mm512_shuffle_i64x2::<0b11_10_11_10>(v[0], v[1]),
        _mm512_shuffle_i64x2::<0b11_10_11_10>(v[2], v[3]),
    ];
    [
        _mm512_shuffle_i64x2::<0b10_00_10_00>(low[0], low[1]),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(low[0], low[1]),
        _mm512_shuffle_i64x2::<0b10_00_10_00>(high[0], high[1]),
        _mm512_shuffle_i64x2::<0b11_01_11_01>(high[0], high[1]),
    ]
}

/// Returns in lane `4 * i + j` the sum of quarter `j` of vector `i`, whose four chains are added in
/// order.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn add_chains(v: [__m512; 4]) -> __m512 {
    let low = [_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpacklo_ps(v[2], v[3])];
    let high = [_mm512_unpackhi_ps(v[0], v[1]), _mm512_unpackhi_ps(v[2], v[3])];
    // Chain by chain; within each quarter, those of all vectors.
    let of = [
        _mm512_shuffle_ps::<0b01_00_01_00>(low[0], low[1]),
        _mm512_shuffle_ps::<0b11_10_11_10>(low[0], low[1]),
        _mm512_shuffle_ps::<0b01_00_01_00>(high[0], high[1]),
        _mm512_shuffle_ps::<0b11_10_11_10>(high[0], high[1]),
    ];
    let sums = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(of[0], of[1]), of[2]), of[3]);
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(order, sums)
}
