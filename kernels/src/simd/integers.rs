//! The types of vectors, and arithmetic on packed small integers: exact, so that every order and
//! every instruction gives the same bits. Attention over a 4-bit KV cache is made of it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::f16;

use super::scalar::Scalar;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// What [`Simd`](super::Simd) builds on.
pub trait Integers: Copy {
    /// A vector of [`Simd::LANES`](super::Simd::LANES) f32.
    type F: Copy;
    /// A vector of as many dwords: packed numbers of some format.
    type D: Copy;

    /// `value` in every lane.
    fn splat_dword(self, value: u32) -> Self::D;
    /// `low` in the first half of the lanes, `high` in the others.
    fn two_dwords(self, low: u32, high: u32) -> Self::D;
    /// Each dword, signed, as f32.
    fn dwords_to_f32(self, d: Self::D) -> Self::F;
    /// The nearest signed dword of each lane, ties to even.
    fn round_dwords(self, a: Self::F) -> Self::D;
    /// The low or the high nibble of every byte as a byte.
    fn nibble_bytes(self, d: Self::D, high: bool) -> Self::D;
    /// Words of `a` and of `b` side by side, `b`'s in the high half: lane `l` has words
    /// `8 * (l / 4) + 4 * half + l % 4`.
    fn interleave_words(self, a: Self::D, b: Self::D, half: usize) -> Self::D;
    /// Nibble `index` of both words of each dword as words.
    fn nibble_words(self, d: Self::D, index: usize) -> Self::D;
    /// The low or the high half of each dword, an f16, as f32.
    fn half_f16(self, d: Self::D, high: bool) -> Self::F;
    /// The low word of each dword, one behind the other.
    ///
    /// # Safety
    /// `to` is valid for writing a word for each lane.
    unsafe fn store_words(self, to: *mut u16, d: Self::D);
    /// `count` bytes, fewer than a vector's, and zeros.
    ///
    /// # Safety
    /// `from` is valid for reading `count` bytes.
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> Self::D;
    /// Whether the machine has instructions of its own for the dot products below, which are then
    /// called with `FAST`; the sums are exact, so both give the same bits.
    fn has_fast_dots(self) -> bool;
    /// `acc +` the sum of the products of four bytes of `a`, below 16, and signed ones of `b`.
    fn dot_bytes<const FAST: bool>(self, acc: Self::D, a: Self::D, b: Self::D) -> Self::D;
    /// `acc +` the sum of the products of two signed words.
    fn dot_words<const FAST: bool>(self, acc: Self::D, a: Self::D, b: Self::D) -> Self::D;
}

/// Evaluates intrinsics that only need the instructions to exist.
#[cfg(target_arch = "x86_64")]
macro_rules! with_token {
    ($body:expr) => {{
        // SAFETY: intrinsics are unsafe outside functions compiled for them; the token exists only
        // where the machine has the instructions, and nothing here touches memory.
        unsafe { $body }
    }};
}

/// One `vpdpbusd`, which is not among the instructions of the variant.
///
/// # Safety
/// The machine has AVX512-VNNI.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn vpdpbusd(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
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

/// One `vpdpwssd`, which is not among the instructions of the variant.
///
/// # Safety
/// The machine has AVX512-VNNI.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn vpdpwssd(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let mut acc = acc;
    // SAFETY: the instruction exists, by the caller's promise, and touches registers only.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {acc}, {a}, {b}",
            acc = inout(zmm_reg) acc,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

#[cfg(target_arch = "x86_64")]
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
    fn dwords_to_f32(self, d: __m512i) -> __m512 {
        with_token!(_mm512_cvtepi32_ps(d))
    }

    #[inline(always)]
    fn round_dwords(self, a: __m512) -> __m512i {
        with_token!(_mm512_cvtps_epi32(a))
    }

    #[inline(always)]
    fn nibble_bytes(self, d: __m512i, high: bool) -> __m512i {
        with_token!({
            let d = if high { _mm512_srli_epi32::<4>(d) } else { d };
            _mm512_and_si512(d, _mm512_set1_epi32(0x0f0f_0f0f))
        })
    }

    #[inline(always)]
    fn interleave_words(self, a: __m512i, b: __m512i, half: usize) -> __m512i {
        with_token!(if half == 0 {
            _mm512_unpacklo_epi16(a, b)
        } else {
            _mm512_unpackhi_epi16(a, b)
        })
    }

    #[inline(always)]
    fn nibble_words(self, d: __m512i, index: usize) -> __m512i {
        with_token!({
            let shifted = match index {
                0 => d,
                1 => _mm512_srli_epi32::<4>(d),
                2 => _mm512_srli_epi32::<8>(d),
                _ => _mm512_srli_epi32::<12>(d),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi32(0xf_000f))
        })
    }

    #[inline(always)]
    fn half_f16(self, d: __m512i, high: bool) -> __m512 {
        with_token!({
            let d = if high { _mm512_srli_epi32::<16>(d) } else { d };
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(d))
        })
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u16, d: __m512i) {
        // SAFETY: the caller promises sixteen writable words.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(d)) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> __m512i {
        // SAFETY: masked bytes are not touched; the caller promises the others.
        unsafe { _mm512_maskz_loadu_epi8((1 << count) - 1, from.cast()) }
    }

    #[inline(always)]
    fn has_fast_dots(self) -> bool {
        is_x86_feature_detected!("avx512vnni")
    }

    #[inline(always)]
    fn dot_bytes<const FAST: bool>(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if FAST {
            // SAFETY: `has_fast_dots` said that the machine has the instruction.
            return unsafe { vpdpbusd(acc, a, b) };
        }
        // Sums of two products of bytes below 16 stay within a word.
        with_token!({
            let words = _mm512_maddubs_epi16(a, b);
            _mm512_add_epi32(acc, _mm512_madd_epi16(words, _mm512_set1_epi16(1)))
        })
    }

    #[inline(always)]
    fn dot_words<const FAST: bool>(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if FAST {
            // SAFETY: `has_fast_dots` said that the machine has the instruction.
            return unsafe { vpdpwssd(acc, a, b) };
        }
        with_token!(_mm512_add_epi32(acc, _mm512_madd_epi16(a, b)))
    }
}

#[cfg(target_arch = "x86_64")]
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
    fn nibble_bytes(self, d: __m256i, high: bool) -> __m256i {
        with_token!({
            let d = if high { _mm256_srli_epi32::<4>(d) } else { d };
            _mm256_and_si256(d, _mm256_set1_epi32(0x0f0f_0f0f))
        })
    }

    #[inline(always)]
    fn interleave_words(self, a: __m256i, b: __m256i, half: usize) -> __m256i {
        with_token!(if half == 0 {
            _mm256_unpacklo_epi16(a, b)
        } else {
            _mm256_unpackhi_epi16(a, b)
        })
    }

    #[inline(always)]
    fn nibble_words(self, d: __m256i, index: usize) -> __m256i {
        with_token!({
            let shifted = match index {
                0 => d,
                1 => _mm256_srli_epi32::<4>(d),
                2 => _mm256_srli_epi32::<8>(d),
                _ => _mm256_srli_epi32::<12>(d),
            };
            _mm256_and_si256(shifted, _mm256_set1_epi32(0xf_000f))
        })
    }

    #[inline(always)]
    fn half_f16(self, d: __m256i, high: bool) -> __m256 {
        with_token!({
            let d = if high {
                _mm256_srli_epi32::<16>(d)
            } else {
                _mm256_and_si256(d, _mm256_set1_epi32(0xffff))
            };
            let low = _mm256_castsi256_si128(d);
            _mm256_cvtph_ps(_mm_packus_epi32(low, _mm256_extracti128_si256::<1>(d)))
        })
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u16, d: __m256i) {
        // SAFETY: the caller promises eight writable words; masked, no word saturates.
        unsafe {
            let d = _mm256_and_si256(d, _mm256_set1_epi32(0xffff));
            let low = _mm256_castsi256_si128(d);
            let words = _mm_packus_epi32(low, _mm256_extracti128_si256::<1>(d));
            _mm_storeu_si128(to.cast(), words);
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
        // Sums of two products of bytes below 16 stay within a word.
        with_token!({
            let words = _mm256_maddubs_epi16(a, b);
            _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)))
        })
    }

    #[inline(always)]
    fn dot_words<const FAST: bool>(self, acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        with_token!(_mm256_add_epi32(acc, _mm256_madd_epi16(a, b)))
    }
}

/// Lanes of the portable variant.
const LANES: usize = 8;

impl Integers for Scalar {
    type F = [f32; LANES];
    type D = [u32; LANES];

    #[inline(always)]
    fn splat_dword(self, value: u32) -> [u32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn two_dwords(self, low: u32, high: u32) -> [u32; LANES] {
        std::array::from_fn(|lane| if lane < LANES / 2 { low } else { high })
    }

    #[inline(always)]
    fn dwords_to_f32(self, d: [u32; LANES]) -> [f32; LANES] {
        d.map(|dword| dword as i32 as f32)
    }

    #[inline(always)]
    fn round_dwords(self, a: [f32; LANES]) -> [u32; LANES] {
        a.map(|value| value.round_ties_even() as i32 as u32)
    }

    #[inline(always)]
    fn nibble_bytes(self, d: [u32; LANES], high: bool) -> [u32; LANES] {
        d.map(|dword| (if high { dword >> 4 } else { dword }) & 0x0f0f_0f0f)
    }

    #[inline(always)]
    fn interleave_words(self, a: [u32; LANES], b: [u32; LANES], half: usize) -> [u32; LANES] {
        std::array::from_fn(|lane| {
            let word = 8 * (lane / 4) + 4 * half + lane % 4;
            let of = |d: [u32; LANES]| d[word / 2] >> (word % 2 * 16) & 0xffff;
            of(a) | of(b) << 16
        })
    }

    #[inline(always)]
    fn nibble_words(self, d: [u32; LANES], index: usize) -> [u32; LANES] {
        d.map(|dword| dword >> (4 * index) & 0xf_000f)
    }

    #[inline(always)]
    fn half_f16(self, d: [u32; LANES], high: bool) -> [f32; LANES] {
        d.map(|dword| f16::from_bits((if high { dword >> 16 } else { dword }) as u16).to_f32())
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut u16, d: [u32; LANES]) {
        // SAFETY: the caller promises eight writable words.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(d.map(|dword| dword as u16)) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8, count: usize) -> [u32; LANES] {
        let mut buffer = [0u8; 4 * LANES];
        // SAFETY: the caller promises `count` bytes, fewer than the buffer's.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), count) };
        bytemuck::cast(buffer)
    }

    #[inline(always)]
    fn has_fast_dots(self) -> bool {
        false
    }

    #[inline(always)]
    fn dot_bytes<const FAST: bool>(
        self,
        acc: [u32; LANES],
        a: [u32; LANES],
        b: [u32; LANES],
    ) -> [u32; LANES] {
        std::array::from_fn(|lane| {
            let (a, b) = (a[lane].to_le_bytes(), b[lane].to_le_bytes());
            let product = |i: usize| i32::from(a[i]) * i32::from(b[i] as i8);
            acc[lane].wrapping_add((0..4).map(product).sum::<i32>() as u32)
        })
    }

    #[inline(always)]
    fn dot_words<const FAST: bool>(
        self,
        acc: [u32; LANES],
        a: [u32; LANES],
        b: [u32; LANES],
    ) -> [u32; LANES] {
        std::array::from_fn(|lane| {
            let product =
                |shift: u32| (a[lane] >> shift) as i16 as i32 * ((b[lane] >> shift) as i16 as i32);
            acc[lane].wrapping_add((product(0) + product(16)) as u32)
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::simd::Simd;
    use crate::variant::{SimdTask, Variant, dispatch};

    /// Every operation on the same bytes, lanes as bytes one after the other.
    struct Every<'a> {
        a: &'a [u8; 64],
        b: &'a [u8; 64],
        out: &'a mut Vec<u32>,
    }

    impl SimdTask for Every<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let mut of_part = |part: usize| {
                // SAFETY: a part of the arrays is a vector.
                let (a, b) = unsafe {
                    let at = part * 4 * S::LANES;
                    (s.load_dwords(self.a.as_ptr().add(at)), s.load_dwords(self.b.as_ptr().add(at)))
                };
                let low = s.nibble_bytes(a, false);
                let high = s.nibble_bytes(a, true);
                let acc = s.splat_dword(7);
                let words = [s.interleave_words(a, b, 0), s.interleave_words(a, b, 1)];
                let nibbles = |index: usize| s.nibble_words(words[index % 2], index);
                let mut vectors = vec![low, high, words[0], words[1]];
                vectors.extend([s.dot_bytes::<false>(acc, low, b), nibbles(1), nibbles(2)]);
                vectors.extend([s.dot_words::<false>(acc, nibbles(0), b), nibbles(3)]);
                if s.has_fast_dots() {
                    vectors[4] = s.dot_bytes::<true>(acc, low, b);
                    vectors[7] = s.dot_words::<true>(acc, nibbles(0), b);
                    let slow = [s.dot_bytes::<false>(acc, low, b)];
                    vectors.extend(slow);
                    vectors.push(s.dot_words::<false>(acc, nibbles(0), b));
                }
                let mut dwords = [0u32; 16];
                for (index, vector) in vectors.into_iter().enumerate() {
                    // SAFETY: the array has room for the widest vector.
                    unsafe { s.store(dwords.as_mut_ptr().cast(), s.bits(vector)) };
                    for dword in &dwords[..S::LANES] {
                        self.out.push(*dword ^ index as u32);
                    }
                }
            };
            for part in 0..16 / S::LANES {
                of_part(part);
            }
        }
    }

    fn every(variant: Variant, a: &[u8; 64], b: &[u8; 64]) -> Vec<Vec<u32>> {
        let mut out = Vec::new();
        // SAFETY: the callers name variants of this machine.
        unsafe { dispatch(variant, Every { a, b, out: &mut out }) };
        let lanes = if variant <= Variant::Avx2 { 8 } else { 16 };
        let operations = out.len() / 16;
        // Operation by operation, whatever the width of the vectors.
        let vectors: Vec<&[u32]> = out.chunks(lanes).collect();
        (0..operations)
            .map(|operation| {
                let parts = 16 / lanes;
                let part = |part: usize| vectors[part * operations + operation].to_vec();
                (0..parts).flat_map(part).collect()
            })
            .collect()
    }

    #[test]
    fn every_variant_computes_the_same_integers() {
        let mut state = 1u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        for _ in 0..100 {
            let a: [u8; 64] = std::array::from_fn(|_| byte());
            let b: [u8; 64] = std::array::from_fn(|_| byte());
            let expected = every(Variant::Scalar, &a, &b);
            for variant in Variant::available() {
                let actual = every(variant, &a, &b);
                assert_eq!(actual[..9], expected[..], "{variant:?}");
                // The slow forms behind the fast ones.
                for (slow, fast) in actual[9..].iter().zip([4, 7]) {
                    let plain = |values: &[u32], index: usize| -> Vec<u32> {
                        values.iter().map(|value| value ^ index as u32).collect()
                    };
                    let index = if fast == 4 { 9 } else { 10 };
                    assert_eq!(plain(slow, index), plain(&actual[fast], fast), "{variant:?}");
                }
            }
        }
    }
}
