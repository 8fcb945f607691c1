//! The two number formats of values and weights in memory: `half::bf16` and `f32`.
//!
//! Sums are always f32. The vector code of a format is in a sealed supertrait, so that no caller
//! can add a format that the kernels do not support.

use std::fmt::Debug;

use half::bf16;

use crate::simd::SimdElement;

/// Number format of activations, weights and caches.
pub trait Number: SimdElement + bytemuck::Pod + Default + Debug + PartialEq + Send + Sync {
    /// Returns the exact f32 value.
    fn to_f32(self) -> f32;
    /// Returns the nearest value of this format, ties to even; NaN stays NaN.
    fn from_f32(value: f32) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return bf16::from_bits((bits >> 16) as u16 | 0x40);
        }
        let rounding = 0x7fff + ((bits >> 16) & 1);
        bf16::from_bits((bits.wrapping_add(rounding) >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_half() {
        let mut bits = 1u32;
        for step in 0..200_000u32 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223 ^ step);
            let value = f32::from_bits(bits);
            assert_eq!(
                <bf16 as Number>::from_f32(value).to_bits(),
                bf16::from_f32(value).to_bits(),
                "bits {bits:#x}"
            );
        }
    }
}
