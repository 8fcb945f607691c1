//! Records of an 8-bit KV cache: a signed byte per element, then a bf16 scale per group of
//! [`KV8_GROUP`].
//!
//! A value is `scale * q`, which is exact in f32. The scale is the largest absolute value over 127,
//! rounded up, so that no integer is cut off and no value is farther than half a step from its
//! decoded one. A bf16 scale widens a step by less than 1/128 where f16 would by 1/1024; in return
//! it becomes f32 by a shift, on every processor and without a slow path for small scales, and
//! attention does that for each group of each position.

use model::quantized_format::KV8_GROUP;

use super::range::sane;
use crate::number::Number;

/// Largest integer; the smallest is its negative.
const LARGEST_INTEGER: f32 = 127.0;

/// Number of maxima that are computed side by side.
const WIDTH: usize = 8;

/// Quantises one position of a head.
#[inline(always)]
pub(super) fn encode_record<T: Number>(x: &[T], record: &mut [u8]) {
    let (integers, scales) = record.split_at_mut(x.len());
    let groups = x.chunks(KV8_GROUP).zip(integers.chunks_mut(KV8_GROUP));
    for ((x, integers), scale) in groups.zip(scales.as_chunks_mut::<2>().0) {
        let mut values = [0.0; KV8_GROUP];
        for (value, x) in values.iter_mut().zip(x) {
            *value = sane(x.to_f32());
        }
        let bits = bf16_above(largest(&values) / LARGEST_INTEGER);
        *scale = bits.to_le_bytes();
        // A group of zeros, or of values so small that their scale is 0, gets zeros.
        let step = if bits == 0 { 1.0 } else { widened(bits) };
        for (integer, value) in integers.iter_mut().zip(values) {
            *integer = nearest(value / step);
        }
    }
}

/// Decodes one position of a head of `out.len()` elements.
#[inline(always)]
pub(crate) fn decode_record(record: &[u8], out: &mut [f32]) {
    let (integers, scales) = record.split_at(out.len());
    let scales = scales.as_chunks::<2>().0;
    let (whole, last) = integers.as_chunks::<KV8_GROUP>();
    let (to_whole, to_last) = out.as_chunks_mut::<KV8_GROUP>();
    // Whole groups have a constant length, so that the compiler unrolls them into vectors.
    for ((integers, to), scale) in whole.iter().zip(to_whole).zip(scales) {
        decode_group(integers, *scale, to);
    }
    if let (Some(scale), false) = (scales.last(), last.is_empty()) {
        decode_group(last, *scale, to_last);
    }
}

#[inline(always)]
fn decode_group(integers: &[u8], scale: [u8; 2], out: &mut [f32]) {
    let scale = widened(u16::from_le_bytes(scale));
    for (integer, out) in integers.iter().zip(out) {
        *out = scale * f32::from(integer.cast_signed());
    }
}

/// Returns the largest absolute value; none is NaN.
#[inline(always)]
fn largest(values: &[f32; KV8_GROUP]) -> f32 {
    let greater = |a: f32, b: f32| if a > b { a } else { b };
    let mut most = [0.0; WIDTH];
    for chunk in values.as_chunks::<WIDTH>().0 {
        for lane in 0..WIDTH {
            most[lane] = greater(chunk[lane].abs(), most[lane]);
        }
    }
    most.into_iter().fold(0.0, greater)
}

/// Returns the bits of the smallest bf16 that is not below `value`, which is neither negative nor
/// near the largest f32.
#[inline(always)]
fn bf16_above(value: f32) -> u16 {
    ((value.to_bits() + 0xffff) >> 16) as u16
}

#[inline(always)]
fn widened(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns the nearest integer of -127 to 127, ties to even, in two's complement. `steps` rounds to
/// one of these.
#[inline(always)]
fn nearest(steps: f32) -> u8 {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the sum.
    const UNIT: f32 = 12_582_912.0;
    (steps + UNIT).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_the_nearest_ones_ties_to_even() {
        let cases =
            [(0.0, 0), (0.5, 0), (1.5, 2), (-0.5, 0), (-1.5, -2), (126.6, 127), (-127., -127)];
        for (steps, expected) in cases {
            assert_eq!(nearest(steps).cast_signed(), expected, "{steps}");
        }
    }

    #[test]
    fn scales_are_rounded_up_to_the_next_bf16() {
        for (value, expected) in [(0.0, 0.0), (1.0, 1.0), (1.001, 1.0078125), (515.7, 516.0)] {
            assert_eq!(widened(bf16_above(value)), expected, "{value}");
        }
    }
}
