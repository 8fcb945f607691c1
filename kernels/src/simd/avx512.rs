//! AVX-512 F, BW, DQ and VL: sixteen lanes, thirty-two registers, masked loads for tails.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{KEPT_BITS, OutOfLine, Simd};

/// Token that asserts that the machine has AVX-512 F, BW, DQ and VL.
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
        // if the machine has the instructions, and nothing here accesses memory.
        unsafe { $body }
    }};
}

#[inline(always)]
fn mask16(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

/// Rounds the f32 in each lane to bf16, in the low half of the lane; NaN becomes a quiet NaN.
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

/// Returns even and odd elements of 32 bf16 as f32.
#[inline(always)]
fn split_pair(_: Avx512, both: __m512i) -> (__m512, __m512) {
    with_token!({
        let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
        (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd))
    })
}

/// Shifts nibble `index` of each dword to its low four bits; other bits are not cleared.
#[inline(always)]
fn shift_nibbles(_: Avx512, d: __m512i, index: usize) -> __m512i {
    with_token!(match index {
        0 => d,
        1 => _mm512_srli_epi32::<4>(d),
        2 => _mm512_srli_epi32::<8>(d),
        3 => _mm512_srli_epi32::<12>(d),
        4 => _mm512_srli_epi32::<16>(d),
        5 => _mm512_srli_epi32::<20>(d),
        6 => _mm512_srli_epi32::<24>(d),
        _ => _mm512_srli_epi32::<28>(d),
    })
}

/// Replaces each pair of vectors `distance` apart by two shuffles of both.
macro_rules! shuffle_pairs {
    ($t:ident, $low:expr, $high:expr, $distance:literal: $($i:literal)*) => {{
        let mut out = $t;
        $(
            out[$i] = $low($t[$i], $t[$i + $distance]);
            out[$i + $distance] = $high($t[$i], $t[$i + $distance]);
        )*
        out
    }};
}

/// Loads 32 bytes at `low` and 32 at `high` as one vector.
///
/// # Safety
/// Both are readable.
#[inline(always)]
pub(super) unsafe fn halves(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: the caller's promise; inserting from memory avoids the shuffle port.
    unsafe {
        let low = _mm256_loadu_si256(low.cast());
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), _mm256_loadu_si256(high.cast()))
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn out_of_line<W: OutOfLine<Avx512>>(s: Avx512, work: W) {
    work.run(s);
}

impl Simd for Avx512 {
    type Block = [__m512i; 16];
    const LANES: usize = 16;
    const TILE_ROWS: usize = 9;
    const DIRECT_ROWS: usize = 8;

    #[inline(always)]
    fn out_of_line<W: OutOfLine<Self>>(self, work: W) {
        with_token!(out_of_line(self, work))
    }

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
    fn times_power(self, a: __m512, n: __m512) -> __m512 {
        with_token!(_mm512_scalef_ps(a, n))
    }

    #[inline(always)]
    fn truncate(self, a: __m512) -> __m512 {
        with_token!(_mm512_and_ps(a, _mm512_set1_ps(f32::from_bits(KEPT_BITS))))
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
    fn prefetch_l2(self, at: *const u8) {
        with_token!(_mm_prefetch::<_MM_HINT_T1>(at.cast()))
    }

    #[inline(always)]
    fn zero_dwords(self) -> __m512i {
        with_token!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn bits(self, d: __m512i) -> __m512 {
        with_token!(_mm512_castsi512_ps(d))
    }

    #[inline(always)]
    fn low_bf16(self, d: __m512i) -> __m512 {
        split_pair(self, d).0
    }

    #[inline(always)]
    fn high_bf16(self, d: __m512i) -> __m512 {
        split_pair(self, d).1
    }

    #[inline(always)]
    fn nibble(self, d: __m512i, index: usize) -> __m512 {
        with_token!({
            // The permutation uses only the low four bits, so no mask is needed.
            let table = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                15.0,
            );
            _mm512_permutexvar_ps(shift_nibbles(self, d, index), table)
        })
    }

    #[inline(always)]
    fn byte(self, d: __m512i, index: usize) -> __m512 {
        with_token!({
            let top = match index {
                0 => _mm512_slli_epi32::<24>(d),
                1 => _mm512_slli_epi32::<16>(d),
                2 => _mm512_slli_epi32::<8>(d),
                _ => d,
            };
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        })
    }

    #[inline(always)]
    fn repeat(self, d: __m512i) -> Self::Block {
        [d; Self::LANES]
    }

    #[inline(always)]
    unsafe fn load_dwords(self, from: *const u8) -> __m512i {
        // SAFETY: the caller promises LANES readable dwords.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose(self, from: *const u8, stride: usize) -> [__m512i; 16] {
        // Vector `8 * half + i` has rows `i` and `i + 4` for i < 4, and rows `i + 4` and `i + 8`
        // for the others, so that three rounds of shuffles of neighbours remain. Within each
        // quarter, two rounds gather a column of four rows; the last one joins the quarters.
        // SAFETY: the caller promises sixteen readable rows.
        let t: [__m512i; 16] = unsafe {
            // Four bases and three distances, the operands that addressing modes support.
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
                halves(a.add(32), b.add(32)),
                halves(a.add(stride + 32), b.add(stride + 32)),
                halves(a.add(two + 32), b.add(two + 32)),
                halves(a.add(three + 32), b.add(three + 32)),
                halves(c.add(32), d.add(32)),
                halves(c.add(stride + 32), d.add(stride + 32)),
                halves(c.add(two + 32), d.add(two + 32)),
                halves(c.add(three + 32), d.add(three + 32)),
            ]
        };
        with_token!({
            let t = shuffle_pairs!(
                t, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, 1: 0 2 4 6 8 10 12 14
            );
            let t = shuffle_pairs!(
                t, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64, 2: 0 1 4 5 8 9 12 13
            );
            // Vectors 0, 2, 1, 3 of four now hold columns 0, 1, 2, 3 of each quarter.
            let t = shuffle_pairs!(
                t,
                _mm512_shuffle_i32x4::<0b10_00_10_00>,
                _mm512_shuffle_i32x4::<0b11_01_11_01>,
                4: 0 1 2 3 8 9 10 11
            );
            [
                t[0], t[2], t[1], t[3], t[4], t[6], t[5], t[7], t[8], t[10], t[9], t[11], t[12],
                t[14], t[13], t[15],
            ]
        })
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> __m512 {
        // SAFETY: the caller promises LANES readable f16.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller promises LANES readable f32.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_partial(self, from: *const f32, count: usize) -> __m512 {
        // SAFETY: masked lanes are not accessed; the caller promises `count` readable f32.
        unsafe { _mm512_maskz_loadu_ps(mask16(count), from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: __m512) {
        // SAFETY: the caller promises LANES writable f32.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn store_partial(self, to: *mut f32, value: __m512, count: usize) {
        // SAFETY: masked lanes are not accessed; the caller promises `count` writable f32.
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
        // SAFETY: masked lanes are not accessed; the caller promises `count` readable bf16.
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

    #[inline(always)]
    unsafe fn store_rounded(self, to: *mut bf16, values: [__m512; 2]) {
        /// Indices of the upper half of each dword of two vectors.
        const UPPER: [u16; 32] = {
            let mut index = [0; 32];
            let mut i = 0;
            while i < 32 {
                index[i] = 2 * i as u16 + 1;
                i += 1;
            }
            index
        };
        // SAFETY: a vector of indices; the caller promises 2 * LANES writable bf16.
        unsafe {
            let half = _mm512_set1_epi32(0x8000);
            let a = _mm512_add_epi32(_mm512_castps_si512(values[0]), half);
            let b = _mm512_add_epi32(_mm512_castps_si512(values[1]), half);
            let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
            _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi16(a, upper, b));
        }
    }
}

/// Issues one `vdpbf16ps`: `acc + w.high * x.high + w.low * x.low` for the bf16 halves of each
/// lane's bits. As inline assembly it stays in the order in which the kernels issue it, whereas the
/// intrinsic is reordered and spilled.
///
/// # Safety
/// The machine has AVX512-BF16, which the token does not assert.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn dot_bf16(w: __m512, x: __m512, acc: __m512) -> __m512 {
    let mut acc = acc;
    // SAFETY: the instruction exists, by the caller's promise, and touches registers only.
    unsafe {
        std::arch::asm!(
            "vdpbf16ps {acc}, {w}, {x}",
            acc = inout(zmm_reg) acc,
            w = in(zmm_reg) w,
            x = in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}
