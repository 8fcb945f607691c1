//! Conversion of groups of x to integers `v`: `x = step * v` with a power of two `step` and `v`
//! within `±(2^11 - 1)`, rounded to nearest, ties to even. `v` is `16 * high + low` with `low`
//! from 0 to 15, and is multiplied as these two digits: 16 times a weight of 4 bits still fits in
//! a byte, so tiles add both products to one sum.

use std::arch::x86_64::*;

use half::bf16;
use model::quantized_format::Bits;

use super::shape::{tile_rows, units_of};
use super::weights::offset;
use crate::linear::factors::{self, FACTORS};
use crate::linear::pack::{NIBBLES, Pack};
use crate::simd::avx512::Avx512;
use crate::simd::{MAX_LANES, Simd};

/// Inputs in a vector of bf16.
const VECTOR: usize = 32;

/// Packs the task's groups as dwords of four inputs, `[block][tile][group][dword][high, low][row]`,
/// or `[tile][group][high, low][row][dword]` if `for_tiles` of AMX. Also writes the factors.
///
/// # Safety
/// The conditions of `MultiplicationPath::pack` hold, and the machine has AVX-512.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn pack(task: &Pack<bf16>, for_tiles: bool) {
    let (group, bits) = task.group.expect("a grouped weight has groups");
    let (first_row, rows) = (task.tiles.start(task.tile), task.rows());
    let units = units_of(group);
    let block = task.tiles.block;
    let mut digits = [Digits::default(); 2];
    let end = task.units.min(task.blocks.end * block) / units;
    for g in task.blocks.start * block / units..end {
        let before = if for_tiles {
            first_row * task.units + g * units * rows
        } else {
            task.tiles.packed_before(task.units, g * units / block, first_row)
                + g * units % block * rows
        };
        let to = task.packed.pointer().wrapping_add(before);
        let of_group = FACTORS * (g * task.tiles.rows + first_row);
        let of_group = task.sums.pointer().wrapping_add(of_group);
        for row in 0..rows {
            let x = task.x.wrapping_add((first_row + row) * task.k + g * group);
            let row_bytes = if for_tiles {
                [0, rows].map(|before| to.wrapping_add((before + row) * units / 2).cast())
            } else {
                digits.each_mut().map(|digits| (&raw mut digits.0[row]).cast())
            };
            // SAFETY: `inputs` inputs of this row exist; the tile's groups are this task's to
            // write.
            unsafe {
                let inputs = group.min(task.k - (g * group).min(task.k));
                let (step, sum) = pack_group(x, inputs, group, bits, row_bytes);
                factors::write(of_group, row, rows, step, sum, offset(bits));
            }
        }
        if !for_tiles {
            // SAFETY: as above.
            unsafe { store_dwords(&digits, to, rows, units / 2) };
        }
    }
}

/// One digit of a tile's rows: `[row][dword]` of a group.
#[derive(Default, Clone, Copy)]
#[repr(C, align(64))]
struct Digits([[u32; MAX_LANES]; MAX_LANES]);

/// Writes both digits as `[dword][high, low][row]`.
///
/// # Safety
/// `to` has space for `dwords` dwords of both digits of `rows` rows.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn store_dwords(digits: &[Digits; 2], to: *mut f32, rows: usize, dwords: usize) {
    const { assert!(tile_rows(Bits::Four) <= MAX_LANES) };
    // SAFETY: this function's own features.
    let s = unsafe { Avx512::new() };
    for (digit, digits) in digits.iter().enumerate() {
        // SAFETY: there is a vector for each row; the rest is the caller's promise.
        unsafe {
            let by_dword = s.transpose((&raw const digits.0).cast(), size_of_val(&digits.0[0]));
            for (dword, of_rows) in by_dword.into_iter().enumerate().take(dwords) {
                let to = to.add((2 * dword + digit) * rows);
                s.store_partial(to, s.bits(of_rows), rows);
            }
        }
    }
}

/// Packs the high and the low digits of `inputs` inputs, with zeros up to a whole group. Returns
/// the step and the sum of all `v`. For a group with an infinity or a NaN the step is NaN.
///
/// # Safety
/// `x` has the inputs; `to` has sufficient space.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack_group(
    x: *const bf16,
    inputs: usize,
    group: usize,
    bits: Bits,
    to: [*mut u8; 2],
) -> (f32, i32) {
    let vectors = group.div_ceil(VECTOR);
    let mut x_bits = [_mm512_setzero_si512(); 2];
    let mut largest = _mm512_setzero_si512();
    for (i, vector) in x_bits.iter_mut().enumerate().take(vectors) {
        let count = inputs.saturating_sub(i * VECTOR).min(VECTOR);
        let mask = ((1u64 << count) - 1) as u32;
        // SAFETY: masked lanes are not read; the others exist.
        *vector = unsafe { _mm512_maskz_loadu_epi16(mask, x.wrapping_add(i * VECTOR).cast()) };
        let magnitude = _mm512_and_si512(*vector, _mm512_set1_epi16(0x7fff));
        largest = _mm512_max_epu16(largest, magnitude);
    }
    let scale = Scale::of(largest_word(largest));
    let mut sum = _mm512_setzero_si512();
    for (i, &vector) in x_bits.iter().enumerate().take(vectors) {
        let a = scale.integers(_mm512_castsi512_si256(vector));
        let b = scale.integers(_mm512_extracti64x4_epi64::<1>(vector));
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
        let words = _mm512_inserti64x4::<1>(
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)),
            _mm512_cvtepi32_epi16(b),
        );
        let high = _mm512_cvtepi16_epi8(_mm512_srai_epi16::<4>(words));
        let low = _mm512_cvtepi16_epi8(_mm512_and_si512(words, _mm512_set1_epi16(15)));
        for (to, bytes) in to.into_iter().zip([high, low]) {
            let bytes = match bits {
                Bits::Four => _mm256_shuffle_epi8(bytes, nibble_order()),
                _ => bytes,
            };
            // SAFETY: the caller's promise.
            unsafe {
                if group < VECTOR {
                    _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(bytes));
                } else {
                    _mm256_storeu_si256(to.add(i * VECTOR).cast(), bytes);
                }
            }
        }
    }
    (scale.step, _mm512_reduce_add_epi32(sum))
}

/// Returns the order of bytes that matches a weight's nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn nibble_order() -> __m256i {
    let low = u64::from_le_bytes(NIBBLES) as i64;
    let high = low + 0x0808_0808_0808_0808;
    _mm256_setr_epi64x(low, high, low, high)
}

/// Returns the largest unsigned word.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw")]
fn largest_word(words: __m512i) -> u16 {
    let half =
        _mm256_max_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64::<1>(words));
    let quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
    // The only horizontal search instruction finds the minimum.
    let ones = _mm_set1_epi16(-1);
    !(_mm_extract_epi16::<0>(_mm_minpos_epu16(_mm_xor_si128(quarter, ones))) as u16)
}

/// Scale of a group's integers.
#[derive(Debug, Clone, Copy)]
struct Scale {
    step: f32,
    /// Biased exponent of a finite step.
    exponent: u32,
}

impl Scale {
    /// Returns the scale of a group whose largest magnitude has these bits as a bf16.
    fn of(magnitude: u16) -> Scale {
        let largest = u32::from(magnitude >> 7);
        // The largest magnitude, which is below the next power of two, gets 11 bits. A step below
        // the smallest normal number would become 0.
        let exponent = largest.saturating_sub(10).max(1);
        let step = if largest < 255 { f32::from_bits(exponent << 23) } else { f32::NAN };
        Scale { step, exponent }
    }

    /// Returns the nearest multiple of the step for each bf16.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn integers(self, half: __m256i) -> __m512i {
        let wide = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half));
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(wide), self.inverse()))
    }

    /// Returns `1 / step` in all lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn inverse(self) -> __m512 {
        _mm512_castsi512_ps(_mm512_set1_epi32(((254 - self.exponent) << 23) as i32))
    }
}
