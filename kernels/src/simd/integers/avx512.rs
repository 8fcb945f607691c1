//! Packed integers of AVX-512, and the dot products of AVX512-VNNI if the machine has them.

use std::arch::x86_64::*;

use super::Integers;
use crate::simd::avx512::{Avx512, halves};

/// Issues one `vpdpbusd`, which is not among the instructions of the variant, in the order in which
/// kernels issue it: the intrinsic is reordered, and spills.
///
/// # Safety
/// The machine has AVX512-VNNI.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn vpdpbusd(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let mut acc = acc;
    // SAFETY: the instruction exists, by the caller's promise, and touches registers only.
    unsafe {
        std::arch::asm!(
            "vpdpbusd {acc}, {a}, {b}",
            acc = inout(zmm_reg) acc,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// Loads `low` into the first half of the lanes and `high` into the others, with broadcasts that
/// are part of their loads. The compiler would turn the intrinsics into a permutation, and the
/// shuffle port is the bottleneck.
///
/// # Safety
/// The machine has AVX-512; both are readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast_halves(low: *const u32, high: *const u32) -> __m512i {
    let out: __m512i;
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {out}, dword ptr [{low}]",
            "vpbroadcastd {out}{{{upper}}}, dword ptr [{high}]",
            out = out(zmm_reg) out,
            upper = in(kreg) 0xff00u16,
            low = in(reg) low,
            high = in(reg) high,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    out
}

impl Integers for Avx512 {
    type F = __m512;
    type D = __m512i;

    #[inline(always)]
    fn splat_dword(self, value: u32) -> __m512i {
        with_token!(_mm512_set1_epi32(value as i32))
    }

    #[inline(always)]
    fn two_dwords(self, low: u32, high: u32) -> __m512i {
        with_token!(_mm512_mask_set1_epi32(_mm512_set1_epi32(low as i32), 0xff00, high as i32))
    }

    #[inline(always)]
    unsafe fn two_dwords_at(self, low: *const u32, high: *const u32) -> __m512i {
        // SAFETY: the caller's promise, and that of the token.
        unsafe { broadcast_halves(low, high) }
    }

    #[inline(always)]
    fn dwords_to_f32(self, d: __m512i) -> __m512 {
        with_token!(_mm512_cvtepi32_ps(d))
    }

    #[inline(always)]
    fn round_dwords(self, a: __m512) -> __m512i {
        with_token!(_mm512_cvtps_epi32(a))
    }

    #[inline(always)]
    fn or_dwords(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn sub_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_sub_epi8(a, b))
    }

    #[inline(always)]
    fn shift_dwords(self, d: __m512i, count: usize) -> __m512i {
        with_token!(_mm512_srl_epi32(d, _mm_cvtsi32_si128(count as i32)))
    }

    #[inline(always)]
    fn move_bits(self, d: __m512i, from: usize, count: usize, to: usize) -> __m512i {
        with_token!({
            let shifted = _mm512_srl_epi32(d, _mm_cvtsi32_si128(from as i32));
            let mask = if count == 1 { 0x0101_0101 } else { 0x0303_0303 };
            let bits = _mm512_and_si512(shifted, _mm512_set1_epi32(mask));
            _mm512_sll_epi32(bits, _mm_cvtsi32_si128(to as i32))
        })
    }

    #[inline(always)]
    fn table_bytes(self, d: __m512i, table: &[i8; 16]) -> __m512i {
        with_token!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), d)
        })
    }

    #[inline(always)]
    unsafe fn load_signed_bytes(self, from: *const u8) -> __m512 {
        // SAFETY: the caller promises sixteen readable bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_half_bytes(self, from: *const u8) -> [__m512; 2] {
        // SAFETY: the caller promises sixteen readable bytes.
        let bytes = unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) };
        with_token!([
            _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15))),
            _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes)),
        ])
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, from: *const u8) -> __m512 {
        // SAFETY: the caller promises sixteen readable bytes.
        let bytes = unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())) };
        // As f16, whose exponents have a bias that is greater by eight.
        with_token!({
            let halves = _mm512_cvtph_ps(_mm256_slli_epi16::<7>(bytes));
            _mm512_mul_ps(halves, _mm512_set1_ps(256.0))
        })
    }

    #[inline(always)]
    fn nibble_bytes(self, d: __m512i, high: bool) -> __m512i {
        with_token!({
            let d = if high { _mm512_srli_epi32::<4>(d) } else { d };
            _mm512_and_si512(d, _mm512_set1_epi32(0x0f0f_0f0f))
        })
    }

    #[inline(always)]
    fn interleave_bytes(self, [a, b, c, d]: [__m512i; 4], half: usize) -> [__m512i; 2] {
        with_token!({
            let (ab, cd) = if half == 0 {
                (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d))
            } else {
                (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d))
            };
            [_mm512_unpacklo_epi16(ab, cd), _mm512_unpackhi_epi16(ab, cd)]
        })
    }

    #[inline(always)]
    unsafe fn load_halves(self, low: *const u8, high: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { halves(low, high) }
    }

    #[inline(always)]
    fn fold_halves(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_add_epi32(
            _mm512_shuffle_i64x2::<0b01_00_01_00>(a, b),
            _mm512_shuffle_i64x2::<0b11_10_11_10>(a, b),
        ))
    }

    #[inline(always)]
    unsafe fn transpose_eight(self, from: *const u8, stride: usize) -> [__m512i; 8] {
        // Vector `i` has rows `i` and `i + 4` for i < 4, and rows `i + 4` and `i + 8` for others.
        // SAFETY: the caller promises sixteen readable rows.
        let t: [__m512i; 8] = unsafe {
            let (a, b) = (from, from.add(4 * stride));
            let (c, d) = (from.add(8 * stride), from.add(12 * stride));
            let (two, three) = (2 * stride, 3 * stride);
            [
                halves(a, b),
                halves(a.add(stride), b.add(stride)),
                halves(a.add(two), b.add(two)),
                halves(a.add(three), b.add(three)),
                halves(c, d),
                halves(c.add(stride), d.add(stride)),
                halves(c.add(two), d.add(two)),
                halves(c.add(three), d.add(three)),
            ]
        };
        // Columns 0 to 3 and 4 to 7 of four rows in the quarters of four vectors.
        macro_rules! columns {
            ($i:literal) => {{
                let low = _mm512_unpacklo_epi32(t[$i], t[$i + 1]);
                let high = _mm512_unpackhi_epi32(t[$i], t[$i + 1]);
                let other_low = _mm512_unpacklo_epi32(t[$i + 2], t[$i + 3]);
                let other_high = _mm512_unpackhi_epi32(t[$i + 2], t[$i + 3]);
                [
                    _mm512_unpacklo_epi64(low, other_low),
                    _mm512_unpackhi_epi64(low, other_low),
                    _mm512_unpacklo_epi64(high, other_high),
                    _mm512_unpackhi_epi64(high, other_high),
                ]
            }};
        }
        with_token!({
            let (a, b) = (columns!(0), columns!(4));
            [
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a[0], b[0]),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a[1], b[1]),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a[2], b[2]),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a[3], b[3]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a[0], b[0]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a[1], b[1]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a[2], b[2]),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a[3], b[3]),
            ]
        })
    }

    #[inline(always)]
    fn halves_f16(self, d: __m512i) -> [__m512; 2] {
        /// Indices of even words, then odd ones.
        const HALVES: [u16; 32] = {
            let mut index = [0; 32];
            let mut i = 0;
            while i < 32 {
                index[i] = (2 * i % 32 + i / 16) as u16;
                i += 1;
            }
            index
        };
        // SAFETY: a vector of indices.
        let index = unsafe { _mm512_loadu_si512(HALVES.as_ptr().cast()) };
        with_token!({
            let words = _mm512_permutexvar_epi16(index, d);
            [
                _mm512_cvtph_ps(_mm512_castsi512_si256(words)),
                _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(words)),
            ]
        })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, d: __m512i) {
        // SAFETY: the caller promises sixteen writable bytes.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(d)) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> __m512i {
        // SAFETY: masked bytes are not accessed; the caller promises the others.
        unsafe { _mm512_maskz_loadu_epi8((1 << count) - 1, from.cast()) }
    }

    const MAY_HAVE_FAST_DOTS: bool = true;

    #[inline(always)]
    fn has_fast_dots(self) -> bool {
        is_x86_feature_detected!("avx512vnni")
    }

    #[inline(always)]
    fn dot_bytes<const FAST: bool>(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if FAST {
            // SAFETY: `has_fast_dots` reported that the machine has the instruction.
            return unsafe { vpdpbusd(acc, a, b) };
        }
        // Sums of two products fit in a word.
        with_token!({
            let words = _mm512_maddubs_epi16(a, b);
            _mm512_add_epi32(acc, _mm512_madd_epi16(words, _mm512_set1_epi16(1)))
        })
    }

    #[inline(always)]
    fn pairs_of_products(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_maddubs_epi16(a, b))
    }

    #[inline(always)]
    fn add_words(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_add_epi16(a, b))
    }

    #[inline(always)]
    fn sums_of_words(self, words: __m512i) -> __m512i {
        with_token!(_mm512_madd_epi16(words, _mm512_set1_epi16(1)))
    }

    #[inline(always)]
    fn add_dwords(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_dwords(self, a: __m512i, b: __m512i) -> __m512i {
        with_token!(_mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn abs_bytes(self, d: __m512i) -> __m512i {
        with_token!(_mm512_abs_epi8(d))
    }

    #[inline(always)]
    fn with_signs(self, d: __m512i, by: __m512i) -> __m512i {
        with_token!({
            let negative =
                _mm512_mask_sub_epi8(d, _mm512_movepi8_mask(by), _mm512_setzero_si512(), d);
            _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(by, by), negative)
        })
    }

    #[inline(always)]
    unsafe fn dot_with_vnni(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { vpdpbusd(acc, a, b) }
    }
}
