//! The 4-bit quantiser of one group, shared by weights and KV.
//!
//! The minimum is rounded down to f16 and the scale up, so that 15 steps from the minimum cover the
//! group regardless of rounding; integers are chosen against the rounded pair. No value is then
//! farther than half a step from a multiple of the step ([`error_bound`]). This holds for all
//! groups:
//! - A group of one value that f16 represents (every bf16 of ordinary size) gets scale 0 and is
//!   exact.
//! - A range too small for an f16 scale of full precision gets a subnormal scale, rounded up.
//! - A value beyond f16's range, infinities included, counts as the largest finite f16 of its sign,
//!   and NaN as 0.

use half::f16;

/// Maximum number of elements in a group, and the number that the vector loops always process.
pub(super) const LONGEST: usize = 64;

/// Largest integer.
const STEPS: f32 = 15.0;

/// Largest finite f16.
const LARGEST: f32 = 65504.0;

/// A quantised group. Integers after the end of the group are 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) scale: f16,
    pub(super) minimum: f16,
    pub(super) q: [u8; LONGEST],
}

/// Returns the maximum distance between a value of a group and its decoded value, given the group's
/// scale and minimum: half a step, and the rounding of the f32 arithmetic. Valid for values of at
/// most 65504.
pub fn error_bound(scale: f16, minimum: f16) -> f32 {
    let (scale, minimum) = (scale.to_f32(), minimum.to_f32().abs());
    // Each of a few operations on numbers within the group's range rounds by 2^-24 of them, and the
    // division of a range that is subnormal in f32 can yield 0.
    scale / 2.0 + (minimum + 16.0 * scale) * 2f32.powi(-22) + f32::MIN_POSITIVE
}

/// Quantises the first `count` values, 1 to [`LONGEST`]. Values after them are overwritten.
#[inline(always)]
pub(super) fn quantise_range(values: &mut [f32; LONGEST], count: usize) -> Range {
    for value in values[..count].iter_mut() {
        *value = sane(*value);
    }
    let first = values[0];
    values[count..].fill(first);
    let (lowest, highest) = ends(values);
    let minimum = f16_below(lowest);
    let offset = minimum.to_f32();
    let scale = f16_above((highest - offset) / STEPS);
    let inverse = if scale.to_bits() == 0 { 0.0 } else { 1.0 / scale.to_f32() };
    let mut q = [0; LONGEST];
    for (q, value) in q.iter_mut().zip(values.iter()) {
        *q = nearest((value - offset) * inverse);
    }
    q[count..].fill(0);
    Range { scale, minimum, q }
}

/// Replaces NaN by 0, a value beyond f16's range by the largest f16 of its sign, and -0 by 0, so
/// that minima of equal numbers have equal bits.
#[inline(always)]
pub(super) fn sane(value: f32) -> f32 {
    let value = if value.is_nan() { 0.0 } else { value };
    let value = if value < LARGEST { value } else { LARGEST };
    let value = if value > -LARGEST { value } else { -LARGEST };
    value + 0.0
}

/// Returns the smallest and the largest value.
#[inline(always)]
fn ends(values: &[f32; LONGEST]) -> (f32, f32) {
    const WIDTH: usize = 16;
    let lesser = |a: f32, b: f32| if a < b { a } else { b };
    let greater = |a: f32, b: f32| if a > b { a } else { b };
    let (mut low, mut high) = ([values[0]; WIDTH], [values[0]; WIDTH]);
    for chunk in values.as_chunks::<WIDTH>().0 {
        for lane in 0..WIDTH {
            low[lane] = lesser(chunk[lane], low[lane]);
            high[lane] = greater(chunk[lane], high[lane]);
        }
    }
    let mut width = WIDTH / 2;
    while width > 0 {
        for lane in 0..width {
            low[lane] = lesser(low[lane], low[lane + width]);
            high[lane] = greater(high[lane], high[lane + width]);
        }
        width /= 2;
    }
    (low[0], high[0])
}

/// Returns the nearest integer of 0 to 15, ties to even. `steps` is not negative.
#[inline(always)]
fn nearest(steps: f32) -> u8 {
    // Adding 2^23 leaves the rounded integer in the low bits of the sum.
    const UNIT: f32 = 8_388_608.0;
    let steps = if steps < STEPS { steps } else { STEPS };
    (steps + UNIT).to_bits() as u8
}

/// Returns the largest f16 that is not above `value`, which is within f16's range.
#[inline(always)]
fn f16_below(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() <= value {
        return near;
    }
    // Rounding down is away from zero for negative numbers; the next f16 below +0 is the smallest
    // negative one.
    match near.to_bits() {
        0 => f16::from_bits(0x8001),
        bits if bits & 0x8000 == 0 => f16::from_bits(bits - 1),
        bits => f16::from_bits(bits + 1),
    }
}

/// Returns the smallest f16 that is not below `value`, which is not negative.
#[inline(always)]
fn f16_above(value: f32) -> f16 {
    let near = f16::from_f32(value);
    if near.to_f32() >= value { near } else { f16::from_bits(near.to_bits() + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_rounding_is_the_neighbour_on_its_side() {
        let mut bits = 1u32;
        for step in 0..200_000u32 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223 ^ step);
            let value = f32::from_bits(bits);
            if value.is_nan() || value.abs() > LARGEST {
                continue;
            }
            let below = f16_below(value);
            assert!(below.to_f32() <= value, "{value}: {below}");
            // The next larger f16 is above the value: the smallest positive one for either zero.
            let up = match below.to_bits() {
                0 | 0x8000 => 1,
                0x7bff => continue,
                bits if bits & 0x8000 == 0 => bits + 1,
                bits => bits - 1,
            };
            assert!(f16::from_bits(up).to_f32() > value, "{value}: {below} is not the next below");
            let above = f16_above(value.abs());
            assert!(above.to_f32() >= value.abs(), "{value}: {above}");
            if above.to_bits() > 0 {
                let down = f16::from_bits(above.to_bits() - 1).to_f32();
                assert!(down < value.abs(), "{value}: {above} is not the next above");
            }
        }
        assert_eq!(f16_below(-1e-9).to_bits(), 0x8001);
        assert_eq!(f16_below(1e-9).to_bits(), 0);
        assert_eq!(f16_above(1e-9).to_bits(), 1);
        assert_eq!(f16_below(-LARGEST).to_f32(), -LARGEST);
        assert_eq!(f16_below(LARGEST).to_f32(), LARGEST);
    }

    #[test]
    fn nearest_ties_to_even_and_stops_at_15() {
        let cases = [(0.0, 0), (0.5, 0), (1.5, 2), (2.5, 2), (14.51, 15), (15.0, 15), (99.0, 15)];
        for (steps, expected) in cases {
            assert_eq!(nearest(steps), expected, "{steps}");
        }
    }
}
