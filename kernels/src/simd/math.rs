//! Elementary functions on vectors, with the same polynomials in every variant.

#![allow(
    clippy::needless_range_loop,
    reason = "what is done to each of some vectors is clearer by index"
)]

use super::Simd;

/// Builds an array of `$value` for each `$i` below `N`. A closure would not be compiled with the
/// instructions of the function that contains it; `$like` is any array of that length.
macro_rules! all {
    ($like:ident, $i:ident => $value:expr) => {{
        let mut all = $like;
        for $i in 0..N {
            all[$i] = $value;
        }
        all
    }};
}

/// Computes `e^x`, relative error about 1e-7; 0 below -87.3 and clamped at `e^88.37`. NaN stays
/// NaN. Several vectors are processed together, step by step: a single one is a long dependency
/// chain, and the processor's window reaches little beyond it.
#[inline(always)]
pub fn exp<S: Simd, const N: usize>(s: S, x: [S::F; N]) -> [S::F; N] {
    const LOWEST: f32 = -87.336_55;
    let clamped = all!(x, i => s.min(s.splat(88.37), s.max(s.splat(LOWEST), x[i])));
    exp_of_clamped(s, x, clamped, LOWEST)
}

/// Computes `e^x` of x up to 0 like [`exp`], but 0 below -44.3: results other than 0 exceed
/// `2^-64`.
#[inline(always)]
pub fn exp_of_negative<S: Simd, const N: usize>(s: S, x: [S::F; N]) -> [S::F; N] {
    const LOWEST: f32 = -44.3;
    let clamped = all!(x, i => s.max(s.splat(LOWEST), x[i]));
    exp_of_clamped(s, x, clamped, LOWEST)
}

/// Computes `e^x` of clamped x; 0 where x was below `lowest`.
#[inline(always)]
fn exp_of_clamped<S: Simd, const N: usize>(
    s: S,
    x: [S::F; N],
    clamped: [S::F; N],
    lowest: f32,
) -> [S::F; N] {
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts keeps r exact.
    let n = all!(x, i => s.round(s.mul(clamped[i], s.splat(std::f32::consts::LOG2_E))));
    let r = all!(x, i => s.fma(n[i], s.splat(-0.693_359_4), clamped[i]));
    let r = all!(x, i => s.fma(n[i], s.splat(2.121_944_4e-4), r[i]));
    let mut p = [s.splat(1.987_569_1e-4); N];
    for term in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = all!(x, i => s.fma(p[i], r[i], s.splat(term)));
    }
    let power = all!(x, i => s.add(s.fma(p[i], s.mul(r[i], r[i]), r[i]), s.splat(1.0)));
    let result = all!(x, i => s.times_power(power[i], n[i]));
    all!(x, i => s.select_less(x[i], s.splat(lowest), s.zero(), result[i]))
}

/// Computes `x / (1 + e^exponent)` of several vectors; see [`exp`].
#[inline(always)]
fn over_one_plus_exp<S: Simd, const N: usize>(
    s: S,
    x: [S::F; N],
    exponent: [S::F; N],
) -> [S::F; N] {
    let mut result = exp(s, exponent);
    for i in 0..N {
        result[i] = s.div(x[i], s.add(s.splat(1.0), result[i]));
    }
    result
}

/// Computes `x / (1 + e^-x)` of several vectors; see [`exp`].
#[inline(always)]
pub fn silu<S: Simd, const N: usize>(s: S, x: [S::F; N]) -> [S::F; N] {
    let mut negative = x;
    for i in 0..N {
        negative[i] = s.sub(s.zero(), x[i]);
    }
    over_one_plus_exp(s, x, negative)
}

/// Computes `1 / (1 + e^-x)` of several vectors; see [`exp`].
#[inline(always)]
pub fn sigmoid<S: Simd, const N: usize>(s: S, x: [S::F; N]) -> [S::F; N] {
    let mut negative = x;
    for i in 0..N {
        negative[i] = s.sub(s.zero(), x[i]);
    }
    over_one_plus_exp(s, [s.splat(1.0); N], negative)
}

/// Computes `ln(1 + e^x)` of several vectors: the positive part of x plus `ln(1 + u)` of
/// `u = e^-|x|`, which is twice the inverse hyperbolic tangent of `u / (2 + u)`. That is at most
/// 1/3, so the terms of its series beyond the fifteenth power are below 1e-8 of the sum.
#[inline(always)]
pub fn softplus<S: Simd, const N: usize>(s: S, x: [S::F; N]) -> [S::F; N] {
    let below = all!(x, i => s.min(x[i], s.sub(s.zero(), x[i])));
    let u = exp(s, below);
    let t = all!(x, i => s.div(u[i], s.add(u[i], s.splat(2.0))));
    let square = all!(x, i => s.mul(t[i], t[i]));
    let mut sum = [s.splat(2.0 / 15.0); N];
    for power in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = all!(x, i => s.fma(sum[i], square[i], s.splat(2.0 / power)));
    }
    all!(x, i => s.fma(sum[i], t[i], s.max(x[i], s.zero())))
}

/// Computes `cap * tanh(x / cap)`, with tanh as twice a sigmoid less 1.
#[inline(always)]
pub fn capped<S: Simd>(s: S, x: S::F, cap: f32) -> S::F {
    let [half] = sigmoid(s, [s.mul(x, s.splat(2.0 / cap))]);
    s.mul(s.splat(cap), s.fma(half, s.splat(2.0), s.splat(-1.0)))
}

/// Computes `x / (1 + e^(-factor * x))` of several vectors; see [`exp`].
#[inline(always)]
pub fn times_sigmoid<S: Simd, const N: usize>(s: S, x: [S::F; N], factor: S::F) -> [S::F; N] {
    let mut negative = x;
    for i in 0..N {
        negative[i] = s.sub(s.zero(), s.mul(factor, x[i]));
    }
    over_one_plus_exp(s, x, negative)
}

/// Computes `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))`, as x times the sigmoid of twice the
/// argument of tanh, of several vectors; see [`exp`].
#[inline(always)]
pub fn gelu_tanh<S: Simd, const N: usize>(s: S, x: [S::F; N]) -> [S::F; N] {
    let mut negative = x;
    for i in 0..N {
        let slope = s.fma(s.mul(x[i], x[i]), s.splat(0.071_354_814), s.splat(1.595_769_2));
        negative[i] = s.sub(s.zero(), s.mul(slope, x[i]));
    }
    over_one_plus_exp(s, x, negative)
}

/// Computes `x/2 (1 + erf(x / sqrt 2))`, the erf version of GELU; absolute error of erf below 2e-7
/// (Abramowitz and Stegun 7.1.26).
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
    let [power] = exp(s, [s.sub(zero, s.mul(magnitude, magnitude))]);
    let tail = s.mul(s.mul(p, t), power);
    // 1 + erf is 2 - tail for positive x and tail for negative x, which keeps the small values
    // exact.
    let one_plus_erf = s.select_less(x, zero, tail, s.sub(s.splat(2.0), tail));
    s.mul(s.mul(x, s.splat(0.5)), one_plus_erf)
}
