//! Integers that the values of a block are rounded to, before they are multiplied by a scale.

use model::quantized_format::Codebook;

/// Number added and subtracted to round a small f32 to the nearest integer, ties to even: beyond
/// it, an f32 has no fraction.
const ROUNDING: f32 = 12_582_912.0;

/// Returns the nearest integer of a number between -2^22 and 2^22.
#[inline(always)]
pub(super) fn nearest_integer(value: f32) -> f32 {
    (value + ROUNDING) - ROUNDING
}

/// Returns `1 / scale`, or 0 for a scale that is too small to have an inverse.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The levels of a type.
pub(super) trait Levels: Copy {
    /// Returns the level nearest to `value`.
    fn nearest(self, value: f32) -> f32;

    /// Returns the lowest and the highest level.
    fn range(self) -> (f32, f32);

    /// Returns the distance between two scales that a search tries, as a difference of the level
    /// to which it maps the largest value.
    fn search_step(self) -> f32;

    /// Returns the number that a block stores for a level.
    fn code(self, level: f32) -> u8;
}

/// All integers from `LOW` to `HIGH`, stored as their distance from `LOW`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Integers<const LOW: i32, const HIGH: i32>;

impl<const LOW: i32, const HIGH: i32> Levels for Integers<LOW, HIGH> {
    #[inline(always)]
    fn nearest(self, value: f32) -> f32 {
        nearest_integer(value.clamp(LOW as f32, HIGH as f32))
    }

    fn range(self) -> (f32, f32) {
        (LOW as f32, HIGH as f32)
    }

    fn search_step(self) -> f32 {
        0.2
    }

    fn code(self, level: f32) -> u8 {
        (level - LOW as f32) as u8
    }
}

/// The table of IQ4_NL and IQ4_XS, stored as indices.
#[derive(Debug, Clone, Copy)]
pub(super) struct NonLinear;

const TABLE: [i8; 16] = Codebook::NonLinear.values();

/// Number of steps of [`NEAREST`] per unit. Midpoints of neighbours in the table are multiples of a
/// half.
const STEPS: f32 = 2.0;
const LOWEST: f32 = TABLE[0] as f32;
const HIGHEST: f32 = TABLE[15] as f32;
/// Number added to steps before they are rounded: a midpoint belongs to the lower level, and what
/// is above it by a hundredth of a step to the upper one.
const UPWARD: f32 = 0.49;
/// Number beyond which the last bits of an f32 are an integer.
const INTEGERS: f32 = 8_388_608.0;

/// Index of the nearest level of each multiple of a half, from the lowest level on.
const NEAREST: [u8; 512] = {
    let mut nearest = [0; 512];
    let (mut step, mut index) = (0, 0);
    while step < 512 {
        let value = step as i32 + 2 * TABLE[0] as i32;
        while index < 15 && value > TABLE[index] as i32 + TABLE[index + 1] as i32 {
            index += 1;
        }
        nearest[step] = index as u8;
        step += 1;
    }
    nearest
};

impl NonLinear {
    #[inline(always)]
    fn index(value: f32) -> usize {
        let steps = (value.clamp(LOWEST, HIGHEST) - LOWEST) * STEPS;
        // At most 480 unless the value is NaN, which becomes some level.
        let index = (steps + UPWARD + INTEGERS).to_bits() as usize;
        usize::from(NEAREST[index % NEAREST.len()])
    }
}

impl Levels for NonLinear {
    #[inline(always)]
    fn nearest(self, value: f32) -> f32 {
        f32::from(TABLE[NonLinear::index(value)])
    }

    fn range(self) -> (f32, f32) {
        (LOWEST, HIGHEST)
    }

    fn search_step(self) -> f32 {
        2.0
    }

    fn code(self, level: f32) -> u8 {
        NonLinear::index(level) as u8
    }
}
