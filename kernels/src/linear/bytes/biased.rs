//! Conversion of exact sums of products to f32.
//!
//! A sum starts as the bits of [`BIAS`], an f32 whose lowest bit counts as one, so that at each
//! time its bits are those of `BIAS` plus the products. `step * (BIAS + sum) - step * BIAS` then is
//! `step * sum`, rounded once: `step` has so few bits that `step * BIAS` is exact.

use crate::linear::factors::FACTORS;
use crate::simd::Simd;

/// An f32 to which integers of at most 2^22 in magnitude are added in its lowest bits.
pub(super) const BIAS: f32 = (3 << 22) as f32;

/// Returns the nearest number of 22 bits below `step`, a number or NaN.
#[inline(always)]
pub(super) fn rounded_step(step: f32) -> f32 {
    f32::from_bits(step.to_bits() & !3)
}

/// Writes the factors of a row of packed x: `sum` is the sum of its integers. See
/// `linear::factors`; sums start from the third, and the fourth removes [`BIAS`].
///
/// # Safety
/// `at` has space for the factors of `rows` rows.
#[inline(always)]
pub(super) unsafe fn write(
    at: *mut f32,
    row: usize,
    rows: usize,
    step: f32,
    sum: i32,
    offset: i32,
) {
    let start = BIAS.to_bits().wrapping_sub((sum * offset) as u32);
    let factors: [f32; FACTORS] = [step, sum as f32 * step, f32::from_bits(start), -BIAS * step];
    for (i, factor) in factors.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { at.add(i * rows + row).write(factor) };
    }
}

/// The factors of one row of `R`, in all lanes.
#[derive(Clone, Copy)]
pub(super) struct RowFactors<S: Simd> {
    step: S::F,
    pub(super) sum: S::F,
    minus_bias: S::F,
}

impl<S: Simd> RowFactors<S> {
    /// Loads the factors of a row.
    ///
    /// # Safety
    /// `factors` are those of a tile of `rows` rows, of which `row` is one.
    #[inline(always)]
    pub(super) unsafe fn load(s: S, factors: *const f32, row: usize, rows: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            RowFactors {
                step: s.splat(*factors.add(row)),
                sum: s.splat(*factors.add(rows + row)),
                minus_bias: s.splat(*factors.add(3 * rows + row)),
            }
        }
    }

    /// Returns the number from which the row's sums start.
    ///
    /// # Safety
    /// As for [`of`](Self::of).
    #[inline(always)]
    pub(super) unsafe fn start(s: S, factors: *const f32, row: usize, rows: usize) -> S::D {
        // SAFETY: the caller's promise.
        s.splat_dword(unsafe { *factors.add(2 * rows + row).cast() })
    }

    /// Returns `sum`, which began at [`start`](Self::start), as multiples of the row's step.
    #[inline(always)]
    pub(super) fn part(self, s: S, sum: S::D) -> S::F {
        if const { S::IS_PORTABLE } {
            // Its `fma` rounds twice, and the first time far too coarsely.
            let sum = s.sub_dwords(sum, s.splat_dword(BIAS.to_bits()));
            return s.mul(s.dwords_to_f32(sum), self.step);
        }
        s.fma(s.bits(sum), self.step, self.minus_bias)
    }
}
