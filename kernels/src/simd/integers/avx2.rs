//! Packed integers of AVX2.

use std::arch::x86_64::*;

use super::Integers;
use crate::simd::Simd;
use crate::simd::avx2::Avx2;

/// Issues one `vpdpbusd`, which is not among the instructions of the variant.
///
/// # Safety
/// The machine has AVX2 and AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn vpdpbusd(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
    let mut acc = acc;
    // SAFETY: the instruction exists, by the caller's promise, and touches registers only.
    unsafe {
        std::arch::asm!(
            "{{vex}} vpdpbusd {acc}, {a}, {b}",
            acc = inout(ymm_reg) acc,
            a = in(ymm_reg) a,
            b = in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

impl Integers for Avx2 {
    type F = __m256;
    type D = __m256i;

    #[inline(always)]
    fn splat_dword(self, value: u32) -> __m256i {
        with_token!(_mm256_set1_epi32(value as i32))
    }

    #[inline(always)]
    fn two_dwords(self, low: u32, high: u32) -> __m256i {
        with_token!(_mm256_set_m128i(_mm_set1_epi32(high as i32), _mm_set1_epi32(low as i32)))
    }

    #[inline(always)]
    fn dwords_to_f32(self, d: __m256i) -> __m256 {
        with_token!(_mm256_cvtepi32_ps(d))
    }

    #[inline(always)]
    fn round_dwords(self, a: __m256) -> __m256i {
        with_token!(_mm256_cvtps_epi32(a))
    }

    #[inline(always)]
    fn or_dwords(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn sub_bytes(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_sub_epi8(a, b))
    }

    #[inline(always)]
    fn shift_dwords(self, d: __m256i, count: usize) -> __m256i {
        with_token!(_mm256_srl_epi32(d, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn move_bits(self, d: __m256i, from: usize, count: usize, to: usize) -> __m256i {
        with_token!({
            let shifted = _mm256_srl_epi32(d, _mm_cvtsi32_si128(from as i32));
            let mask = if count == 1 { 0x0101_0101 } else { 0x0303_0303 };
            let bits = _mm256_and_si256(shifted, _mm256_set1_epi32(mask));
            _mm256_sll_epi32(bits, _mm_cvtsi32_si128(to as i32))
        })
    }

    #[inline(always)]
    fn table_bytes(self, d: __m256i, table: &[i8; 16]) -> __m256i {
        with_token!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), d)
        })
    }

    #[inline(always)]
    unsafe fn load_signed_bytes(self, from: *const u8) -> __m256 {
        // SAFETY: the caller promises eight readable bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_half_bytes(self, from: *const u8) -> [__m256; 2] {
        // SAFETY: the caller promises eight readable bytes.
        let bytes = unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())) };
        with_token!([
            _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15))),
            _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes)),
        ])
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> __m256 {
        // SAFETY: the caller promises eight readable bytes.
        let bytes = unsafe { _mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast())) };
        // As f16, whose exponents have a bias that is greater by eight.
        with_token!({
            let halves = _mm256_cvtph_ps(_mm_slli_epi16::<7>(bytes));
            _mm256_mul_ps(halves, _mm256_set1_ps(256.0))
        })
    }

    #[inline(always)]
    fn nibble_bytes(self, d: __m256i, high: bool) -> __m256i {
        with_token!({
            let d = if high { _mm256_srli_epi32::<4>(d) } else { d };
            _mm256_and_si256(d, _mm256_set1_epi32(0x0f0f_0f0f))
        })
    }

    #[inline(always)]
    fn interleave_bytes(self, [a, b, c, d]: [__m256i; 4], half: usize) -> [__m256i; 2] {
        with_token!({
            let (ab, cd) = if half == 0 {
                (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d))
            } else {
                (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d))
            };
            [_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd)]
        })
    }

    #[inline(always)]
    unsafe fn load_halves(self, low: *const u8, high: *const u8) -> __m256i {
        // SAFETY: the caller promises sixteen bytes at both.
        unsafe { _mm256_loadu2_m128i(high.cast(), low.cast()) }
    }

    #[inline(always)]
    fn fold_halves(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(a, b),
            _mm256_permute2x128_si256::<0x31>(a, b),
        ))
    }

    #[inline(always)]
    unsafe fn transpose_eight(self, from: *const u8, stride: usize) -> [__m256i; 8] {
        // SAFETY: the caller's promise: a row is a vector.
        unsafe { self.transpose(from, stride) }
    }

    #[inline(always)]
    fn halves_f16(self, d: __m256i) -> [__m256; 2] {
        with_token!({
            let low = _mm256_and_si256(d, _mm256_set1_epi32(0xffff));
            // Four words of each half of the lanes in turn: low, high, low, high.
            let words = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(d));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(words)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(words)),
            ]
        })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, d: __m256i) {
        // SAFETY: the caller promises eight writable bytes.
        unsafe {
            let low = _mm256_castsi256_si128(d);
            let words = _mm_packus_epi32(low, _mm256_extracti128_si256::<1>(d));
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> __m256i {
        let mut buffer = [0u8; 32];
        // SAFETY: the caller promises `count` bytes, fewer than the buffer's.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count);
            _mm256_loadu_si256(buffer.as_ptr().cast())
        }
    }

    #[inline(always)]
    fn has_fast_dots(self) -> bool {
        false
    }

    #[inline(always)]
    fn dot_bytes<const FAST: bool>(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // Sums of two products fit in a word.
        with_token!({
            let words = _mm256_maddubs_epi16(a, b);
            _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)))
        })
    }

    #[inline(always)]
    fn pairs_of_products(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_maddubs_epi16(a, b))
    }

    #[inline(always)]
    fn add_words(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_add_epi16(a, b))
    }

    #[inline(always)]
    fn sums_of_words(self, words: __m256i) -> __m256i {
        with_token!(_mm256_madd_epi16(words, _mm256_set1_epi16(1)))
    }

    #[inline(always)]
    fn add_dwords(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_dwords(self, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_sub_epi32(a, b))
    }

    #[inline(always)]
    fn abs_bytes(self, d: __m256i) -> __m256i {
        with_token!(_mm256_abs_epi8(d))
    }

    #[inline(always)]
    fn with_signs(self, d: __m256i, by: __m256i) -> __m256i {
        with_token!(_mm256_sign_epi8(d, by))
    }

    #[inline(always)]
    unsafe fn dot_with_vnni(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise, and that of the token.
        unsafe { vpdpbusd(acc, a, b) }
    }
}
