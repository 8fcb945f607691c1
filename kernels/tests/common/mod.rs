//! Helpers of the kernel tests: seeded inputs, kernels of every variant and thread count,
//! comparison.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod records;

use kernels::{Element, Kernels, ScratchLimits, VARIANT_ENV, Variant};

/// Small seeded generator (SplitMix64): tests must not depend on the generator they test.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a roughly normally distributed number within -2..2.
    pub fn unit(&mut self) -> f32 {
        let draw = |bits: u64| (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        draw(self.bits()) + draw(self.bits())
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    pub fn vector<T: Element>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_f32(self.unit())).collect()
    }
}

/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

pub const LIMITS: ScratchLimits =
    ScratchLimits { rows: 300, linear_inputs: 4608, positions: 700, group: 9, head_dim: 128 };

/// Returns every variant of this machine, or the one that `TANDEM_KERNELS` names; missing variants
/// are reported as skipped.
pub fn variants(test: &str) -> Vec<Variant> {
    if std::env::var_os(VARIANT_ENV).is_some_and(|name| !name.is_empty()) {
        return vec![Variant::from_env().expect("a variant of this machine")];
    }
    for variant in Variant::ALL {
        if !variant.is_available() {
            println!("SKIP {test} ({}): this processor lacks it", variant.name());
        }
    }
    Variant::available()
}

pub fn kernels(variant: Variant, threads: usize) -> Kernels {
    Kernels::new(variant, threads, LIMITS).expect("threads start")
}

/// Returns a vector of `len` NaN: elements that a kernel leaves unwritten show.
pub fn poison<T: Element>(len: usize) -> Vec<T> {
    vec![T::from_f32(f32::NAN); len]
}

pub fn bits<T: Element>(values: &[T]) -> Vec<u32> {
    values.iter().map(|value| value.to_f32().to_bits()).collect()
}

/// Asserts that each difference, less the one rounding of the result to `T`, is within `tolerance`
/// times the root mean square of its row of `expected`. `typical` is the expected magnitude of a
/// value, for rows so short that theirs is not representative. This is far stricter than
/// `Op::tolerance` in bf16.
pub fn assert_close<T: Element>(
    actual: &[T],
    expected: &[f64],
    (row, typical): (usize, f64),
    tolerance: f64,
    context: &str,
) {
    assert_eq!(actual.len(), expected.len(), "{context}");
    let half_step = if size_of::<T>() == 2 { 1.0 / 256.0 } else { 1.0 / 16_777_216.0 };
    let row = row.max(1);
    for (index, (actual, expected)) in actual.chunks(row).zip(expected.chunks(row)).enumerate() {
        let square: f64 = expected.iter().map(|value| value * value).sum();
        let floor = if row < 8 { typical } else { typical / 8.0 };
        let rms = (square / expected.len() as f64).sqrt().max(floor);
        for (column, (actual, expected)) in actual.iter().zip(expected).enumerate() {
            let difference = (f64::from(actual.to_f32()) - expected).abs();
            assert!(
                difference <= tolerance * rms + half_step * expected.abs(),
                "{context}: row {index} column {column}: {actual:?}, not {expected} (rms {rms})"
            );
        }
    }
}

/// Returns the tolerance that the table of operations permits for a linear in f32.
pub fn tolerance() -> f64 {
    f64::from(model::ops::Op::Q.tolerance(model::config::Dtype::F32))
}

/// Returns the permitted error of values of attention, relative to the root mean square of a head:
/// some variants round the weights of bf16 values to bf16.
pub fn values_tolerance<T: Element>(variant: Variant) -> f64 {
    let rounds = variant == Variant::Avx512Bf16 && size_of::<T>() == 2;
    if rounds { 1e-2 } else { tolerance() }
}

/// Returns true if a variant multiplies bf16 by grouped weights in integers on this machine.
pub fn has_integers(variant: Variant) -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_instruction = is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    let has_instruction = false;
    variant >= Variant::Avx512 && has_instruction
}

/// Returns the step of a group of x where it is multiplied in integers: 2^-11 of the power of two
/// above its largest value.
pub fn step_of<T: Element>(x: &[T]) -> f64 {
    let largest = x.iter().fold(0.0f32, |a, x| a.max(x.to_f32().abs()));
    assert!(largest.is_finite(), "a step of finite values");
    let mut step = 2.0f64.powi(-126);
    while step * 2048.0 <= f64::from(largest) {
        step *= 2.0;
    }
    step
}

/// Returns a group of x as multiples of a 127th of its largest magnitude, and that step in 22 bits.
pub fn bytes_of<T: Element>(x: &[T]) -> (Vec<i32>, f32) {
    let largest = x.iter().fold(2.0f32.powi(-100), |a, x| a.max(x.to_f32().abs()));
    let bytes = x.iter().map(|x| (x.to_f32() * (127.0 / largest)).round_ties_even() as i32);
    (bytes.collect(), f32::from_bits((largest / 127.0).to_bits() & !3))
}
