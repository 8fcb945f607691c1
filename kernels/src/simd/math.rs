//! Elementary functions on vectors, the same polynomials in every variant.

use super::Simd;

/// `e^x`, relative error about 1e-7; 0 below -87.3 and clamped at `e^88.37`. NaN stays NaN.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const LOWEST: f32 = -87.336_55;
    let clamped = s.min(s.splat(88.37), s.max(s.splat(LOWEST), x));
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts keeps r exact.
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    p = s.fma(p, r, s.splat(1.398_199_9e-3));
    p = s.fma(p, r, s.splat(8.333_452e-3));
    p = s.fma(p, r, s.splat(4.166_579_6e-2));
    p = s.fma(p, r, s.splat(1.666_666_6e-1));
    p = s.fma(p, r, s.splat(0.5));
    let power = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    let result = s.mul(power, s.exp2_integral(n));
    s.select_less(x, s.splat(LOWEST), s.zero(), result)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(x, s.add(one, exp(s, s.sub(s.zero(), x))))
}

/// `x/2 (1 + erf(x / sqrt 2))`, the erf form; absolute error of erf below 2e-7 (Abramowitz and
/// Stegun 7.1.26).
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    let zero = s.zero();
    let scaled = s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let magnitude = s.max(s.sub(zero, scaled), scaled);
    let t = s.div(one, s.fma(magnitude, s.splat(0.327_591_1), one));
    let mut p = s.splat(1.061_405_4);
    p = s.fma(p, t, s.splat(-1.453_152));
    p = s.fma(p, t, s.splat(1.421_413_7));
    p = s.fma(p, t, s.splat(-0.284_496_74));
    p = s.fma(p, t, s.splat(0.254_829_6));
    let tail = s.mul(s.mul(p, t), exp(s, s.sub(zero, s.mul(magnitude, magnitude))));
    // 1 + erf is 2 - tail on the right and tail on the left, which keeps the small values exact.
    let one_plus_erf = s.select_less(x, zero, tail, s.sub(s.splat(2.0), tail));
    s.mul(s.mul(x, s.splat(0.5)), one_plus_erf)
}
