//! Decoding of the vectors of a group: four integers of sixteen columns per step, as unsigned
//! bytes.

use std::arch::x86_64::*;

use model::quantized_format::{Bits, Codebook};

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
    match records.bits().count() {
        8 => steps,
        2 | 3 => steps.div_ceil(4),
        _ => steps / 2,
    }
}

/// Returns the offset that was added to integers to make them unsigned bytes.
pub(super) fn offset(bits: Bits) -> i32 {
    match bits {
        Bits::Eight | Bits::Table(_) => 128,
        bits => i32::from(bits.offset()),
    }
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

/// Decodes integers of all types except `Bits::Four` to unsigned bytes, two steps at a time.
pub(super) trait WeightBytes: Copy {
    /// Returns the vectors of a group's steps, and the one that its steps have in common.
    ///
    /// # Safety
    /// The machine has AVX-512, and the group exists.
    unsafe fn begin(self, group: GroupIntegers) -> GroupVectors;
    /// Returns the bytes of steps `2 * pair` and `2 * pair + 1`, pair after pair.
    ///
    /// # Safety
    /// The machine has AVX-512, and the steps exist.
    unsafe fn pair(self, vectors: &mut GroupVectors, pair: usize) -> [__m512i; 2];
}

/// Integers of a group of sixteen columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupIntegers {
    /// Start of the group's integers, or of those of the groups that are stored together.
    from: *const u8,
    /// Number of steps before the group in these.
    first_step: usize,
    /// Vector of third bits in integers of three bits.
    third_vector: usize,
}

impl GroupIntegers {
    /// Returns the integers of a group in those at `from`.
    #[inline(always)]
    pub(super) fn new(records: Records, from: *const u8, group: usize) -> GroupIntegers {
        let (first_step, third_vector) = (records.first_step(group), records.third_vector());
        GroupIntegers { from, first_step, third_vector }
    }
}

/// Vectors of a group's steps, in memory, and the vector that they have in common, advanced by the
/// steps that were decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupVectors {
    from: *const u8,
    upper: __m512i,
}

impl GroupVectors {
    /// Returns a vector in memory.
    ///
    /// # Safety
    /// It exists.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn vector(&self, index: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(self.from.wrapping_add(64 * index).cast()) }
    }
}

/// 8 bits, with 128 added.
#[derive(Clone, Copy)]
pub(super) struct Int8Weights;

impl WeightBytes for Int8Weights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, group: GroupIntegers) -> GroupVectors {
        GroupVectors { from: group.from, upper: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pair(self, vectors: &mut GroupVectors, pair: usize) -> [__m512i; 2] {
        let offset = _mm512_set1_epi32(0x8080_8080_u32 as i32);
        // SAFETY: the caller's promise.
        [0, 1].map(|step| unsafe { _mm512_xor_si512(vectors.vector(2 * pair + step), offset) })
    }
}

/// Nibbles with `UPPER_BITS` bits above each, as they are stored.
#[derive(Clone, Copy)]
pub(super) struct UpperBits<const UPPER_BITS: u32>;

impl<const UPPER_BITS: u32> WeightBytes for UpperBits<UPPER_BITS> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, group: GroupIntegers) -> GroupVectors {
        // SAFETY: a group begins with its upper bits.
        let upper = unsafe { _mm512_loadu_si512(group.from.cast()) };
        GroupVectors { from: group.from.wrapping_add(64), upper }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pair(self, vectors: &mut GroupVectors, pair: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { vectors.vector(pair) };
        let mask = _mm512_set1_epi32(if UPPER_BITS == 1 { 0x1010_1010 } else { 0x3030_3030 });
        let upper = &mut vectors.upper;
        [false, true].map(|high| {
            let above = _mm512_and_si512(_mm512_slli_epi32::<4>(*upper), mask);
            *upper = _mm512_srli_epi32::<UPPER_BITS>(*upper);
            _mm512_or_si512(codes(vector, high), above)
        })
    }
}

/// Returns the values of a table in each 128 bits, with 128 added.
#[inline]
#[target_feature(enable = "avx512f")]
fn table_bytes(table: Codebook) -> __m512i {
    let values = table.values();
    // SAFETY: sixteen bytes are loaded.
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    let offset = _mm512_set1_epi32(0x8080_8080_u32 as i32);
    _mm512_xor_si512(_mm512_broadcast_i32x4(values), offset)
}

/// Values of a table of four bits, with 128 added.
#[derive(Clone, Copy)]
pub(super) struct TableWeights(__m512i);

impl TableWeights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(table: Codebook) -> TableWeights {
        TableWeights(table_bytes(table))
    }
}

impl WeightBytes for TableWeights {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, group: GroupIntegers) -> GroupVectors {
        GroupVectors { from: group.from, upper: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair(self, vectors: &mut GroupVectors, pair: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { vectors.vector(pair) };
        [false, true].map(|high| _mm512_shuffle_epi8(self.0, codes(vector, high)))
    }
}

/// Values of a table of two bits, or of three if `HAS_THIRD`, with 128 added.
#[derive(Clone, Copy)]
pub(super) struct FewBits<const HAS_THIRD: bool>(__m512i);

impl<const HAS_THIRD: bool> FewBits<HAS_THIRD> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new(table: Codebook) -> Self {
        debug_assert_eq!(table.index_bits(), 2 + usize::from(HAS_THIRD), "{table:?}");
        FewBits(table_bytes(table))
    }
}

impl<const HAS_THIRD: bool> WeightBytes for FewBits<HAS_THIRD> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn begin(self, group: GroupIntegers) -> GroupVectors {
        let GroupIntegers { from, first_step, third_vector } = group;
        let upper = if HAS_THIRD {
            // SAFETY: groups that are stored together have a vector of third bits.
            let third = unsafe { _mm512_loadu_si512(from.wrapping_add(64 * third_vector).cast()) };
            _mm512_srl_epi32(third, _mm_cvtsi32_si128(first_step as i32))
        } else {
            _mm512_setzero_si512()
        };
        // A vector has four steps, and a group begins with one.
        GroupVectors { from: from.wrapping_add(64 * (first_step / 4)), upper }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn pair(self, vectors: &mut GroupVectors, pair: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        let vector = unsafe { vectors.vector(pair / 2) };
        let codes = codes(vector, pair % 2 == 1);
        let two_bits = _mm512_set1_epi32(0x0303_0303);
        let upper = &mut vectors.upper;
        [codes, _mm512_srli_epi32::<2>(codes)].map(|codes| {
            let mut index = _mm512_and_si512(codes, two_bits);
            if HAS_THIRD {
                let third = _mm512_and_si512(
                    _mm512_slli_epi32::<2>(*upper),
                    _mm512_set1_epi32(0x0404_0404),
                );
                *upper = _mm512_srli_epi32::<1>(*upper);
                index = _mm512_or_si512(index, third);
            }
            _mm512_shuffle_epi8(self.0, index)
        })
    }
}
