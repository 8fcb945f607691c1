//! AVX2 and FMA: eight lanes, sixteen registers; tails go through the stack.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{KEPT_BITS, OutOfLine, Simd};

const LANES: usize = 8;

/// Token that asserts that the machine has AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub struct Avx2 {
    _private: (),
}

impl Avx2 {
    /// # Safety
    /// The machine must have AVX2 and FMA.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx2 { _private: () }
    }
}

/// Evaluates intrinsics that only need the instructions to exist.
macro_rules! with_token {
    ($body:expr) => {{
        // SAFETY: intrinsics are unsafe outside functions compiled for them; the token exists only
        // if the machine has the instructions, and nothing here accesses memory.
        unsafe { $body }
    }};
}

/// Rounds the f32 in each lane to bf16, in the low half of the lane; NaN becomes a quiet NaN.
#[inline(always)]
fn round_to_bf16(_: Avx2, value: __m256) -> __m256i {
    with_token!({
        let bits = _mm256_castps_si256(value);
        let high = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        let rounding = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, rounding));
        let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        _mm256_blendv_epi8(rounded, quiet, nan)
    })
}

/// Returns even and odd elements of 16 bf16 as f32.
#[inline(always)]
fn split_pair(_: Avx2, both: __m256i) -> (__m256, __m256) {
    with_token!({
        let odd = _mm256_and_si256(both, _mm256_set1_epi32(0xffff_0000_u32 as i32));
        (_mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)), _mm256_castsi256_ps(odd))
    })
}

/// Returns all ones in the first `count` lanes.
#[inline(always)]
fn mask(_: Avx2, count: usize) -> __m256i {
    with_token!({
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes)
    })
}

/// Loads sixteen bytes of row `row` and of row `row + 4` as one vector.
///
/// # Safety
/// Both are readable.
#[inline(always)]
unsafe fn half_rows(from: *const u8, stride: usize, row: usize) -> __m256i {
    // SAFETY: the caller's promise; inserting from memory avoids the shuffle port.
    unsafe {
        let low = _mm_loadu_si128(from.add(row * stride).cast());
        let high = _mm_loadu_si128(from.add((row + 4) * stride).cast());
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
    }
}

/// Loads the four dwords at `from` of each of eight rows as four vectors.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn quarter_columns(_: Avx2, from: *const u8, stride: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        let (a, b) = (half_rows(from, stride, 0), half_rows(from, stride, 1));
        let (c, d) = (half_rows(from, stride, 2), half_rows(from, stride, 3));
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab2, cd2) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab2, cd2),
            _mm256_unpackhi_epi64(ab2, cd2),
        ]
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn out_of_line<W: OutOfLine<Avx2>>(s: Avx2, work: W) {
    work.run(s);
}

impl Simd for Avx2 {
    type Block = [__m256i; LANES];
    const LANES: usize = LANES;
    const TILE_ROWS: usize = 4;
    const DIRECT_ROWS: usize = 4;

    #[inline(always)]
    fn out_of_line<W: OutOfLine<Self>>(self, work: W) {
        with_token!(out_of_line(self, work))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        with_token!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        with_token!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        with_token!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        with_token!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        with_token!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        with_token!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        with_token!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        with_token!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn select_less(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        with_token!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }

    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        with_token!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }

    #[inline(always)]
    fn exp2_integral(self, a: __m256) -> __m256 {
        with_token!({
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn truncate(self, a: __m256) -> __m256 {
        with_token!(_mm256_and_ps(a, _mm256_set1_ps(f32::from_bits(KEPT_BITS))))
    }

    #[inline(always)]
    fn sum_lanes(self, a: __m256) -> f32 {
        with_token!({
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<0b01>(two, two)))
        })
    }

    #[inline(always)]
    fn max_lanes(self, a: __m256) -> f32 {
        with_token!({
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<0b01>(two, two)))
        })
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        with_token!(_mm_prefetch::<_MM_HINT_T0>(at.cast()))
    }

    #[inline(always)]
    fn prefetch_l2(self, at: *const u8) {
        with_token!(_mm_prefetch::<_MM_HINT_T1>(at.cast()))
    }

    #[inline(always)]
    fn zero_dwords(self) -> __m256i {
        with_token!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn bits(self, d: __m256i) -> __m256 {
        with_token!(_mm256_castsi256_ps(d))
    }

    #[inline(always)]
    fn low_bf16(self, d: __m256i) -> __m256 {
        split_pair(self, d).0
    }

    #[inline(always)]
    fn high_bf16(self, d: __m256i) -> __m256 {
        split_pair(self, d).1
    }

    #[inline(always)]
    fn nibble(self, d: __m256i, index: usize) -> __m256 {
        with_token!({
            let shifted = match index {
                0 => d,
                1 => _mm256_srli_epi32::<4>(d),
                2 => _mm256_srli_epi32::<8>(d),
                3 => _mm256_srli_epi32::<12>(d),
                4 => _mm256_srli_epi32::<16>(d),
                5 => _mm256_srli_epi32::<20>(d),
                6 => _mm256_srli_epi32::<24>(d),
                _ => _mm256_srli_epi32::<28>(d),
            };
            _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)))
        })
    }

    #[inline(always)]
    fn byte(self, d: __m256i, index: usize) -> __m256 {
        with_token!({
            let top = match index {
                0 => _mm256_slli_epi32::<24>(d),
                1 => _mm256_slli_epi32::<16>(d),
                2 => _mm256_slli_epi32::<8>(d),
                _ => d,
            };
            _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(top))
        })
    }

    #[inline(always)]
    fn repeat(self, d: __m256i) -> Self::Block {
        [d; Self::LANES]
    }

    #[inline(always)]
    unsafe fn load_dwords(self, from: *const u8) -> __m256i {
        // SAFETY: the caller promises LANES readable dwords.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize) -> [__m256i; LANES] {
        // SAFETY: the caller's promise is the callee's.
        let (low, high) = unsafe {
            (quarter_columns(self, from, stride), quarter_columns(self, from.add(16), stride))
        };
        [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m256 {
        // SAFETY: the caller promises LANES readable f16; every machine with AVX2 has F16C, and
        // `Variant::is_available` checks for it.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m256 {
        // SAFETY: the caller promises LANES readable f32.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> __m256 {
        // SAFETY: masked lanes are not accessed; the caller promises `count` readable f32.
        unsafe { _mm256_maskload_ps(from, mask(self, count)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m256) {
        // SAFETY: the caller promises LANES writable f32.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: __m256, count: usize) {
        // SAFETY: masked lanes are not accessed; the caller promises `count` writable f32.
        unsafe { _mm256_maskstore_ps(to, mask(self, count), value) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> __m256 {
        // SAFETY: the caller promises LANES readable bf16.
        unsafe {
            let halves = _mm_loadu_si128(from.cast());
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, value: __m256) {
        let rounded = round_to_bf16(self, value);
        // SAFETY: the caller promises LANES writable bf16; packing saturates unsigned values that
        // are below 65536, so it changes nothing.
        unsafe {
            let packed = _mm_packus_epi32(
                _mm256_castsi256_si128(rounded),
                _mm256_extracti128_si256::<1>(rounded),
            );
            _mm_storeu_si128(to.cast(), packed);
        }
    }

    #[inline(always)]
    unsafe fn load_pair_bf16(self, from: *const bf16) -> (__m256, __m256) {
        // SAFETY: the caller promises 2 * LANES readable bf16.
        split_pair(self, unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_pair_partial_bf16(self, from: *const bf16, count: usize) -> (__m256, __m256) {
        let mut buffer = [bf16::ZERO; 2 * LANES];
        // SAFETY: AVX2 has no masked load of 16-bit elements; the caller promises `count` readable
        // bf16, fewer than the buffer holds.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            self.load_pair_bf16(buffer.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_pair_bf16(self, to: *mut bf16, value: (__m256, __m256)) {
        let (even, odd) = (round_to_bf16(self, value.0), round_to_bf16(self, value.1));
        // SAFETY: the caller promises 2 * LANES writable bf16.
        unsafe {
            let both = _mm256_or_si256(even, _mm256_slli_epi32::<16>(odd));
            _mm256_storeu_si256(to.cast(), both);
        }
    }
}
