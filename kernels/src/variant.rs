//! Selection of the instruction set of the kernels, once at run time: one binary runs on every
//! machine, and tests can force each variant.

use crate::simd::{OutOfLine, Simd, scalar::Scalar};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2::Avx2, avx512::Avx512};

/// Environment variable that forces a variant, by [`Variant::name`].
pub const VARIANT_ENV: &str = "TANDEM_KERNELS";

/// An instruction set. Different variants agree within `Op::tolerance`, not bit for bit; runs that
/// must be bit-equal use one variant in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// Portable code, no intrinsics.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX512-BF16 for linears in bf16, and for scores of one query per head; AVX-512 for
    /// everything else.
    Avx512Bf16,
    /// AMX-BF16 for linears in bf16, AVX-512 for everything else.
    Amx,
}

/// Reason for which a variant cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    #[error(
        "TANDEM_KERNELS={0} names no kernel variant; use scalar, avx2, avx512, avx512bf16 or amx, or leave it unset."
    )]
    Unknown(String),
    #[error(
        "TANDEM_KERNELS={requested} cannot be used: this machine's processor or system lacks it; the best it can run is {best}."
    )]
    Unsupported { requested: &'static str, best: &'static str },
}

impl Variant {
    /// All variants, slowest first.
    pub const ALL: [Variant; 5] =
        [Variant::Scalar, Variant::Avx2, Variant::Avx512, Variant::Avx512Bf16, Variant::Amx];

    /// Returns `scalar`, `avx2`, `avx512`, `avx512bf16` or `amx`: used in reports and in
    /// `TANDEM_KERNELS`.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Scalar => "scalar",
            Variant::Avx2 => "avx2",
            Variant::Avx512 => "avx512",
            Variant::Avx512Bf16 => "avx512bf16",
            Variant::Amx => "amx",
        }
    }

    /// Returns true if this machine can run the variant.
    pub fn is_available(self) -> bool {
        match self {
            Variant::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512 => {
                Variant::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512Bf16 => {
                Variant::Avx512.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(target_arch = "x86_64")]
            Variant::Amx => Variant::Avx512.is_available() && crate::amx::is_usable(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Returns the rows of x in the register tile of the linears that work with vectors.
    pub(crate) fn tile_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => Avx2::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512 | Variant::Avx512Bf16 | Variant::Amx => Avx512::TILE_ROWS,
            _ => Scalar::TILE_ROWS,
        }
    }

    /// Returns true if attention over bf16 caches multiplies pairs of bf16.
    pub(crate) fn multiplies_pairs(self) -> bool {
        self == Variant::Avx512Bf16
    }

    /// Returns the variants that this machine can run, slowest first.
    pub fn available() -> Vec<Variant> {
        Variant::ALL.into_iter().filter(|variant| variant.is_available()).collect()
    }

    /// Returns the fastest variant that this machine can run.
    pub fn best() -> Variant {
        Variant::ALL
            .into_iter()
            .rev()
            .find(|variant| variant.is_available())
            .unwrap_or(Variant::Scalar)
    }

    /// Returns the variant that `TANDEM_KERNELS` names, or the best one if it is unset or empty.
    pub fn from_env() -> Result<Variant, VariantError> {
        match std::env::var_os(VARIANT_ENV) {
            None => Ok(Variant::best()),
            Some(value) => Variant::from_name(&value.to_string_lossy()),
        }
    }

    /// Returns the variant called `name`, which must run on this machine; an empty name is the best
    /// one.
    pub fn from_name(name: &str) -> Result<Variant, VariantError> {
        if name.is_empty() {
            return Ok(Variant::best());
        }
        let variant = Variant::ALL
            .into_iter()
            .find(|variant| variant.name() == name)
            .ok_or_else(|| VariantError::Unknown(name.to_owned()))?;
        if variant.is_available() {
            Ok(variant)
        } else {
            let best = Variant::best().name();
            Err(VariantError::Unsupported { requested: variant.name(), best })
        }
    }
}

/// Work that is written once over [`Simd`] and compiled for each variant.
pub(crate) trait SimdTask {
    /// Runs the task. Must be `#[inline(always)]`, and so must everything it calls that uses
    /// vectors: only code inlined into a function of its token ([`Simd::out_of_line`]) is compiled
    /// with its instructions.
    fn run<S: Simd>(self, simd: S);
}

/// Runs `task` with the instructions of `variant`.
///
/// # Safety
/// `variant` must be available on this machine ([`Variant::is_available`]).
#[inline]
pub(crate) unsafe fn dispatch<W: SimdTask>(variant: Variant, task: W) {
    let task = Entered(task);
    match variant {
        Variant::Scalar => Scalar.out_of_line(task),
        // SAFETY: a token asserts that the machine has its instructions, which the caller
        // guarantees.
        #[cfg(target_arch = "x86_64")]
        Variant::Avx2 => unsafe { Avx2::new() }.out_of_line(task),
        #[cfg(target_arch = "x86_64")]
        Variant::Avx512 | Variant::Avx512Bf16 | Variant::Amx => {
            // SAFETY: as above.
            unsafe { Avx512::new() }.out_of_line(task);
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => Scalar.out_of_line(task),
    }
}

/// Runs `task` like [`dispatch`], for variants with vectors of eight lanes: work that has a path of
/// its own in wider ones is not compiled for them.
///
/// # Safety
/// Same contract as [`dispatch`].
///
/// # Panics
/// If `variant` has wider vectors.
#[inline]
pub(crate) unsafe fn dispatch_narrow<W: SimdTask>(variant: Variant, task: W) {
    match variant {
        Variant::Scalar => Scalar.out_of_line(Entered(task)),
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "x86_64")]
        Variant::Avx2 => unsafe { Avx2::new() }.out_of_line(Entered(task)),
        wide => unreachable!("{wide:?} has a path of its own"),
    }
}

/// Adapter that runs a task in a function of a token, where its vectors are used.
struct Entered<W>(W);

impl<S: Simd, W: SimdTask> OutOfLine<S> for Entered<W> {
    #[inline(always)]
    fn run(self, s: S) {
        self.0.run(s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_refusals_are_sentences() {
        for variant in Variant::available() {
            assert_eq!(Variant::from_name(variant.name()), Ok(variant));
        }
        assert_eq!(Variant::from_name(""), Ok(Variant::best()));
        let error = Variant::from_name("neon").unwrap_err().to_string();
        assert!(error.contains("neon") && error.contains("avx512"), "{error}");
        for variant in Variant::ALL {
            if !variant.is_available() {
                let error = Variant::from_name(variant.name()).unwrap_err().to_string();
                assert!(error.contains(variant.name()), "{error}");
            }
        }
    }
}
