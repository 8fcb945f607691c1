//! Decoding of the vectors of a group: four integers of sixteen columns per step, as unsigned
//! bytes.

use std::arch::x86_64::*;

use model::quantized_format::{Bits, Codebook, Grouped, ScaleLayout};

use super::shape::COLS;
use crate::linear::reader::Records;

/// Inputs of a step: the weights in the bytes of a lane.
const STEP: usize = 4;

/// Returns the number of steps of a group.
pub(super) const fn steps(group: usize) -> usize {
    group / STEP
}

/// Returns the number of vectors of a group's weights, except those of their upper bits.
pub(super) fn vectors(records: Records) -> usize {
    let steps = steps(records.group());
    if records.bits() == Bits::Eight { steps } else { steps / 2 }
}

/// Returns the offset that was added to integers to make them unsigned bytes.
pub(super) fn offset(bits: Bits) -> i32 {
    match bits {
        Bits::Eight | Bits::Table(_) => 128,
        bits => i32::from(bits.offset()),
    }
}

/// Returns the scales and minimums of a record's columns for its group `place`.
///
/// # Safety
/// The record and the group exist.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f")]
pub(super) unsafe fn ranges(format: Grouped, record: *const u8, place: usize) -> (__m512, __m512) {
    let scales = format.scales;
    // SAFETY: a record starts with them, as specified in `model::compressed`.
    unsafe {
        let halves = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(record.add(at).cast()));
        let bytes = |at: usize| _mm512_cvtepi8_epi32(_mm_loadu_si128(record.add(at).cast()));
        let times = |half: __m512, at: usize| _mm512_mul_ps(half, _mm512_cvtepi32_ps(bytes(at)));
        // The usual formats are tested first: a jump table costs more than the code that it
        // selects.
        if scales == ScaleLayout::Halves {
            return (halves(0), halves(2 * COLS));
        }
        if scales == ScaleLayout::ProductsAndMinimums {
            let at = (4 + 2 * place) * COLS;
            return (times(halves(0), at), times(halves(2 * COLS), at + COLS));
        }
        if scales == ScaleLayout::Products {
            // All three factors have few bits, so their product is exact.
            let unit = _mm512_set1_ps(format.unit());
            let scale = _mm512_mul_ps(times(halves(0), (2 + place) * COLS), unit);
            return (scale, _mm512_setzero_ps());
        }
        match scales {
            ScaleLayout::HalfScales => (halves(place * 2 * COLS), _mm512_setzero_ps()),
            // The product of two powers of two is exact, even below the smallest normal number.
            ScaleLayout::PowersOfTwo => {
                let power = bytes(place * COLS);
                let normal = _mm512_max_epi32(power, _mm512_set1_epi32(-126));
                let rest = _mm512_sub_epi32(power, normal);
                (_mm512_mul_ps(power_of_two(normal), power_of_two(rest)), _mm512_setzero_ps())
            }
            _ => (_mm512_loadu_ps(record.cast()), _mm512_loadu_ps(record.add(4 * COLS).cast())),
        }
    }
}

/// Returns `2^a` for each lane, with `a` from -126 to 127.
#[inline]
#[target_feature(enable = "avx512f")]
fn power_of_two(a: __m512i) -> __m512 {
    let exponent = _mm512_add_epi32(a, _mm512_set1_epi32(127));
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
}

/// Returns a step's weights of 4 bits, from the low or from the high nibbles: 16 times each, and
/// unchanged.
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

/// Returns the low or the high nibble of every byte.
#[inline]
#[target_feature(enable = "avx512f")]
fn codes(vector: __m512i, high: bool) -> __m512i {
    let low = _mm512_set1_epi32(0x0f0f_0f0f);
    let vector = if high { _mm512_srli_epi32::<4>(vector) } else { vector };
    _mm512_and_si512(low, vector)
}

/// Decodes integers of all types except `Bits::Int4Records` to unsigned bytes, two steps at a time.
pub(super) trait WeightBytes: Copy {
    /// Vectors in memory per two steps.
    const VECTORS: usize;
    /// Vectors with which a group begins, before those of its steps.
    const UPPER: usize;

    /// Returns the vector that the steps of a group have in common.
    ///
    /// # Safety
    /// The group exists.
    unsafe fn begin(self, group: *const u8) -> __m512i;
    /// Returns the bytes of a pair of steps, from its vectors. `upper` is the result of `begin`,
    /// advanced by the preceding steps.
    ///
    /// # Safety
    /// The machine has AVX-512, and the vectors exist.
    unsafe fn pair(self, vectors: *const u8, upper: &mut __m512i) -> [__m512i; 2];
}

/// 8 bits, with 128 added.
#[derive(Clone, Copy)]
pub(super) struct Int8Weights;

impl WeightBytes for Int8Weights {
    const VECTORS: usize = 2;
    const UPPER: usize = 0;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, _: *const u8) -> __m512i {
        _mm512_setzero_si512()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pair(self, vectors: *const u8, _: &mut __m512i) -> [__m512i; 2] {
        let offset = _mm512_set1_epi32(0x8080_8080_u32 as i32);
        // SAFETY: the caller's promise.
        [0, 64].map(|at| unsafe {
            _mm512_xor_si512(_mm512_loadu_si512(vectors.add(at).cast()), offset)
        })
    }
}

/// Nibbles with `UPPER_BITS` bits above each, as they are stored.
#[derive(Clone, Copy)]
pub(super) struct UpperBits<const UPPER_BITS: u32>;

impl<const UPPER_BITS: u32> WeightBytes for UpperBits<UPPER_BITS> {
    const VECTORS: usize = 1;
    const UPPER: usize = 1;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, group: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(group.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pair(self, vectors: *const u8, upper: &mut __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { _mm512_loadu_si512(vectors.cast()) };
        let mask = _mm512_set1_epi32(if UPPER_BITS == 1 { 0x1010_1010 } else { 0x3030_3030 });
        [false, true].map(|high| {
            let above = _mm512_and_si512(_mm512_slli_epi32::<4>(*upper), mask);
            *upper = _mm512_srli_epi32::<UPPER_BITS>(*upper);
            _mm512_or_si512(codes(vector, high), above)
        })
    }
}

/// Values of a table, with 128 added.
#[derive(Clone, Copy)]
pub(super) struct TableWeights(__m512i);

impl TableWeights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(table: Codebook) -> TableWeights {
        let values = table.values();
        // SAFETY: sixteen bytes are loaded.
        let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
        let offset = _mm512_set1_epi32(0x8080_8080_u32 as i32);
        TableWeights(_mm512_xor_si512(_mm512_broadcast_i32x4(values), offset))
    }
}

impl WeightBytes for TableWeights {
    const VECTORS: usize = 1;
    const UPPER: usize = 0;

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, _: *const u8) -> __m512i {
        _mm512_setzero_si512()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair(self, vectors: *const u8, _: &mut __m512i) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { _mm512_loadu_si512(vectors.cast()) };
        [false, true].map(|high| _mm512_shuffle_epi8(self.0, codes(vector, high)))
    }
}
