//! AVX-512 F, BW, DQ and VL: sixteen lanes, thirty-two registers, masked loads for tails.

use std::arch::x86_64::*;

use half::bf16;

use super::Simd;

/// Token: the machine has AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub struct Avx512 {
    _private: (),
}

impl Avx512 {
    /// # Safety
    /// The machine must have AVX-512 F, BW, DQ and VL.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx512 { _private: () }
    }
}

/// Evaluates intrinsics that only need the instructions to exist.
macro_rules! with_token {
    ($body:expr) => {{
        // SAFETY: intrinsics are unsafe outside functions compiled for them; the token exists only
        // where the machine has the instructions, and nothing here touches memory.
        unsafe { $body }
    }};
}

#[inline(always)]
fn mask16(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

/// The f32 in each lane rounded to bf16, in the low half of the lane; NaN becomes a quiet NaN.
#[inline(always)]
fn round_to_bf16(_: Avx512, value: __m512) -> __m512i {
    with_token!({
        let bits = _mm512_castps_si512(value);
        let high = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        let rounding = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, rounding));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40))
    })
}

/// Even and odd elements of 32 bf16 as f32.
#[inline(always)]
fn split_pair(_: Avx512, both: __m512i) -> (__m512, __m512) {
    with_token!({
        let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd))
    })
}

/// First step of the sums of lanes of `a` and `b`: eight lanes of `a`, then eight of `b`.
#[inline(always)]
fn fold_16(_: Avx512, a: __m512, b: __m512) -> __m512 {
    with_token!(_mm512_add_ps(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b)
    ))
}

/// Second step: four lanes of each of the four vectors folded into `ab` and `cd`.
#[inline(always)]
fn fold_8(_: Avx512, ab: __m512, cd: __m512) -> __m512 {
    with_token!(_mm512_add_ps(
        _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
        _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd)
    ))
}

/// Third step, within each quarter: two lanes of `p`'s vector, then two of `q`'s.
#[inline(always)]
fn fold_4(_: Avx512, p: __m512, q: __m512) -> __m512 {
    with_token!({
        let (p, q) = (_mm512_castps_pd(p), _mm512_castps_pd(q));
        let (low, high) = (_mm512_unpacklo_pd(p, q), _mm512_unpackhi_pd(p, q));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    })
}

/// Last step, within each quarter: one lane of each of the four vectors.
#[inline(always)]
fn fold_2(_: Avx512, pq: __m512, rs: __m512) -> __m512 {
    with_token!(_mm512_add_ps(
        _mm512_shuffle_ps::<0b10_00_10_00>(pq, rs),
        _mm512_shuffle_ps::<0b11_01_11_01>(pq, rs)
    ))
}

impl Simd for Avx512 {
    type F = __m512;
    const LANES: usize = 16;
    const TILE: (usize, usize) = (4, 6);

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        with_token!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        with_token!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        with_token!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        with_token!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        with_token!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        with_token!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        with_token!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        with_token!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn select_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        with_token!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        with_token!(_mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(a))
    }

    #[inline(always)]
    fn exp2_integral(self, a: __m512) -> __m512 {
        with_token!({
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn sum_lanes(self, a: __m512) -> f32 {
        with_token!({
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<0b01>(two, two)))
        })
    }

    #[inline(always)]
    fn sum_lanes_of_each<const MR: usize, const NR: usize>(
        self,
        tile: [[__m512; NR]; MR],
    ) -> __m512 {
        let of = |lane: usize| tile[lane / NR][lane % NR];
        // Lane `4 * quarter + lane` of the result comes from the vector of that number.
        let quarters = |lane: usize| {
            let low = fold_16(self, of(lane), of(lane + 4));
            fold_8(self, low, fold_16(self, of(lane + 8), of(lane + 12)))
        };
        let (first, second) = (quarters(0), quarters(1));
        let even = fold_4(self, first, second);
        fold_2(self, even, fold_4(self, quarters(2), quarters(3)))
    }

    #[inline(always)]
    fn max_lanes(self, a: __m512) -> f32 {
        with_token!({
            let eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<0b01>(two, two)))
        })
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        with_token!(_mm_prefetch::<_MM_HINT_T0>(at.cast()))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller promises LANES readable f32.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: masked lanes are not touched; the caller promises `count` readable f32.
        unsafe { _mm512_maskz_loadu_ps(mask16(count), from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller promises LANES writable f32.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: __m512, count: usize) {
        // SAFETY: masked lanes are not touched; the caller promises `count` writable f32.
        unsafe { _mm512_mask_storeu_ps(to, mask16(count), value) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m512 {
        // SAFETY: the caller promises LANES readable bf16.
        unsafe {
            let halves = _mm256_loadu_si256(from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: __m512) {
        let rounded = round_to_bf16(self, value);
        // SAFETY: the caller promises LANES writable bf16.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(rounded)) }
    }

    #[inline(always)]
    unsafe fn load_pair_bf16(self, from: *const bf16) -> (__m512, __m512) {
        // SAFETY: the caller promises 2 * LANES readable bf16.
        split_pair(self, unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_pair_partial_bf16(self, from: *const bf16, count: usize) -> (__m512, __m512) {
        let mask = ((1u64 << count) - 1) as __mmask32;
        // SAFETY: masked lanes are not touched; the caller promises `count` readable bf16.
        split_pair(self, unsafe { _mm512_maskz_loadu_epi16(mask, from.cast()) })
    }

    #[inline(always)]
    unsafe fn store_pair_bf16(self, to: *mut bf16, value: (__m512, __m512)) {
        let (even, odd) = (round_to_bf16(self, value.0), round_to_bf16(self, value.1));
        // SAFETY: the caller promises 2 * LANES writable bf16.
        unsafe {
            let both = _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd));
            _mm512_storeu_si512(to.cast(), both);
        }
    }
}
