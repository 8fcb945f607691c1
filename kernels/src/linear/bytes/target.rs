//! Instruction sets for which the path is compiled.

use crate::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use crate::simd::avx512::Avx512;
use crate::simd::scalar::Scalar;
use crate::variant::Variant;

/// An instruction set, and the size of its register tile.
pub(in crate::linear) trait Target {
    type S: Simd;
    /// True if one instruction multiplies four bytes and adds their products.
    const HAS_DOTS: bool;
    /// Maximum number of rows of a tile if a dword is the only sum of a row and vector, and if
    /// weights take more registers.
    const TILE_ROWS: [usize; 2];

    /// Returns true if this machine has the instructions, and `variant` may use them. The first
    /// target that fits is used (`registry`).
    fn fits(variant: Variant) -> bool;
    /// # Safety
    /// The machine has the instructions.
    unsafe fn token() -> Self::S;
}

/// Portable code.
pub(in crate::linear) enum Portable {}

impl Target for Portable {
    type S = Scalar;
    const HAS_DOTS: bool = false;
    const TILE_ROWS: [usize; 2] = [1, 1];

    fn fits(variant: Variant) -> bool {
        variant == Variant::Scalar
    }

    unsafe fn token() -> Scalar {
        Scalar
    }
}

/// AVX2, also on processors with AVX-512 that cannot multiply bytes in one instruction.
#[cfg(target_arch = "x86_64")]
pub(in crate::linear) enum Narrow {}

#[cfg(target_arch = "x86_64")]
impl Target for Narrow {
    type S = Avx2;
    const HAS_DOTS: bool = false;
    const TILE_ROWS: [usize; 2] = [6, 4];

    fn fits(variant: Variant) -> bool {
        variant != Variant::Scalar
    }

    unsafe fn token() -> Avx2 {
        // SAFETY: the caller's promise.
        unsafe { Avx2::new() }
    }
}

/// AVX2 with AVX-VNNI.
#[cfg(target_arch = "x86_64")]
pub(in crate::linear) enum NarrowDots {}

#[cfg(target_arch = "x86_64")]
impl Target for NarrowDots {
    type S = Avx2;
    const HAS_DOTS: bool = true;
    const TILE_ROWS: [usize; 2] = [6, 6];

    fn fits(variant: Variant) -> bool {
        variant == Variant::Avx2 && is_x86_feature_detected!("avxvnni")
    }

    unsafe fn token() -> Avx2 {
        // SAFETY: the caller's promise.
        unsafe { Avx2::new() }
    }
}

/// AVX-512 with AVX512-VNNI.
#[cfg(target_arch = "x86_64")]
pub(in crate::linear) enum WideDots {}

#[cfg(target_arch = "x86_64")]
impl Target for WideDots {
    type S = Avx512;
    const HAS_DOTS: bool = true;
    const TILE_ROWS: [usize; 2] = [6, 6];

    fn fits(variant: Variant) -> bool {
        let is_wide = matches!(variant, Variant::Avx512 | Variant::Avx512Bf16 | Variant::Amx);
        is_wide && is_x86_feature_detected!("avx512vnni")
    }

    unsafe fn token() -> Avx512 {
        // SAFETY: the caller's promise.
        unsafe { Avx512::new() }
    }
}
