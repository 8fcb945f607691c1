//! Softmax over a row of scores, chunk by chunk of its positions.
//!
//! Each chunk has its own softmax: the **weight** of a position is the exponential of its score
//! minus the chunk's highest score, cut off to 20 bits, and 0 below `2^-64`. A chunk's **factor**
//! converts its weights to probabilities: the exponential of its highest score minus the row's,
//! over the row's sum; 0 below `2^-60`. No chunk therefore needs to know of another before all are
//! done.
//!
//! A weight is recovered exactly from its probability ([`recover`]): the largest probability of a
//! chunk is its factor, since the largest weight is 1, and a quotient is near only one number of 20
//! bits. No intermediate value is subnormal. Values that are added up from probabilities in memory
//! therefore have the bits of values that are added up from the weights themselves.
//!
//! **Order of the sum.** Within a chunk, position `p` goes to lane `(p - first) % LANES`, where
//! `first` is the first position of the chunk that the row sees, and the lanes are added by the
//! tree of `Simd::sum_lanes`; the sums of the chunks are added in order, each times the exponential
//! of its highest score minus the row's. A maximum is independent of order.

#![allow(clippy::needless_range_loop, reason = "vectors are surer to stay in registers by index")]

use half::bf16;

use super::prefetch::Prefetcher;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{MAX_LANES, Simd, math};

/// Smallest factor that is not 0: `2^-60`. Its product with the smallest weight is a normal number.
const SMALLEST_FACTOR: f32 = 8.673_617_4e-19;
/// Number of vectors that are processed together.
const TOGETHER: usize = 4;

/// Returns the largest of `len >= 1` scores. NaN is ignored here and propagates through the
/// exponentials.
///
/// # Safety
/// `scores` holds `len` values.
#[inline(always)]
pub(super) unsafe fn maximum<S: Simd>(s: S, scores: *const f32, len: usize) -> f32 {
    let whole = len / S::LANES * S::LANES;
    // SAFETY: all offsets are below `len`.
    unsafe {
        let mut largest = [s.splat(f32::NEG_INFINITY); TOGETHER];
        let mut at = 0;
        while at + TOGETHER * S::LANES <= whole {
            for i in 0..TOGETHER {
                largest[i] = s.max(s.load(scores.add(at + i * S::LANES)), largest[i]);
            }
            at += TOGETHER * S::LANES;
        }
        for at in (at..whole).step_by(S::LANES) {
            largest[0] = s.max(s.load(scores.add(at)), largest[0]);
        }
        let [a, b, c, d] = largest;
        let mut highest = s.max_lanes(s.max(s.max(a, b), s.max(c, d)));
        for at in whole..len {
            highest = highest.max(*scores.add(at));
        }
        highest
    }
}

/// Destination of the weights of some positions.
#[derive(Clone, Copy)]
pub(super) enum Weights {
    Plain(*mut f32),
    /// Rounded to bf16, followed by up to two vectors of zeros.
    Rounded(*mut bf16),
}

impl Weights {
    /// Writes complete vectors, starting at `at`.
    ///
    /// # Safety
    /// There is space for them, and for two vectors if they are rounded.
    #[inline(always)]
    unsafe fn store<S: Simd, const N: usize>(self, s: S, at: usize, values: [S::F; N]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Weights::Plain(to) => {
                    for i in 0..N {
                        s.store(to.add(at + i * S::LANES), values[i]);
                    }
                }
                Weights::Rounded(to) => {
                    for i in (0..N).step_by(2) {
                        let second = if i + 1 < N { values[i + 1] } else { s.zero() };
                        s.store_rounded(to.add(at + i * S::LANES), [values[i], second]);
                    }
                }
            }
        }
    }

    /// Writes the first `width` lanes, and returns them followed by zeros.
    ///
    /// # Safety
    /// Same contract as [`Weights::store`].
    #[inline(always)]
    unsafe fn store_some<S: Simd>(self, s: S, at: usize, value: S::F, width: usize) -> S::F {
        let mut lanes = [0.0f32; MAX_LANES];
        // SAFETY: the caller's promise; the buffer has space for the widest vectors.
        unsafe {
            store_up_to(s, lanes.as_mut_ptr(), value, width);
            let value = s.load(lanes.as_ptr());
            match self {
                Weights::Plain(to) => store_up_to(s, to.add(at), value, width),
                Weights::Rounded(to) => s.store_rounded(to.add(at), [value, s.zero()]),
            }
            value
        }
    }
}

/// Writes the weights of `len` scores, whose highest is `highest`, to `out`, and returns their sum.
///
/// # Safety
/// `scores` holds `len` values; `out` has space for them and is the address of the scores, or
/// before it.
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(
    s: S,
    scores: *const f32,
    len: usize,
    out: Weights,
    highest: f32,
    prefetcher: &mut Prefetcher<'_>,
) -> f32 {
    let highest = s.splat(highest);
    let whole = len / S::LANES * S::LANES;
    let mut sum = s.zero();
    // SAFETY: all offsets are below `len`.
    unsafe {
        let mut at = 0;
        while const { !S::IS_PORTABLE } && at + TOGETHER * S::LANES <= whole {
            let mut values = [s.zero(); TOGETHER];
            for _ in 0..TOGETHER {
                prefetcher.fill_vector(s);
            }
            for i in 0..TOGETHER {
                values[i] = s.sub(s.load(scores.add(at + i * S::LANES)), highest);
            }
            values = math::exp_of_negative(s, values);
            for i in 0..TOGETHER {
                values[i] = s.truncate(values[i]);
                sum = s.add(sum, values[i]);
            }
            out.store(s, at, values);
            at += TOGETHER * S::LANES;
        }
        for at in (at..whole).step_by(S::LANES) {
            prefetcher.fill_vector(s);
            let below = s.sub(s.load(scores.add(at)), highest);
            let [value] = math::exp_of_negative(s, [below]);
            let value = s.truncate(value);
            out.store(s, at, [value]);
            sum = s.add(sum, value);
        }
        if whole < len {
            let below = s.sub(load_up_to(s, scores.add(whole), len - whole), highest);
            let [value] = math::exp_of_negative(s, [below]);
            let value = s.truncate(value);
            sum = s.add(sum, out.store_some(s, whole, value, len - whole));
        }
    }
    s.sum_lanes(sum)
}

/// Writes the weights from which `len` probabilities of a chunk were computed; `factor` is the
/// largest.
///
/// # Safety
/// Same contract as [`weights`].
#[inline(always)]
pub(super) unsafe fn recover<S: Simd>(
    s: S,
    probabilities: *const f32,
    len: usize,
    out: Weights,
    factor: f32,
) {
    // The relative error of a quotient is at most 2^-23, and numbers of 20 bits are 2^-20 to 2^-19
    // apart; adding 2^-21 of the quotient gives a value above its number and below the next one.
    let more = s.splat(1.0 / (1u32 << 21) as f32);
    let factor = s.splat(factor);
    for at in (0..len).step_by(S::LANES) {
        let width = S::LANES.min(len - at);
        // SAFETY: all offsets are below `len`.
        unsafe {
            let weight = s.div(load_up_to(s, probabilities.add(at), width), factor);
            let weight = s.truncate(s.fma(weight, more, weight));
            out.store_some(s, at, weight, width);
        }
    }
}

/// Returns `e^below` of one number up to 0.
#[inline(always)]
pub(super) fn exponential<S: Simd>(s: S, below: f32) -> f32 {
    let [power] = math::exp(s, [s.splat(below)]);
    s.max_lanes(power)
}

/// Returns the factor of a chunk whose highest score minus the row's is `below`.
#[inline(always)]
pub(super) fn factor<S: Simd>(s: S, below: f32, sum: f32) -> f32 {
    let factor = exponential(s, below) / sum;
    if factor < SMALLEST_FACTOR { 0.0 } else { factor }
}

/// Computes `values *= factor`.
///
/// # Safety
/// `values` holds `len` values.
#[inline(always)]
pub(super) unsafe fn multiply<S: Simd>(s: S, values: *mut f32, len: usize, factor: f32) {
    let factor = s.splat(factor);
    for at in (0..len).step_by(S::LANES) {
        let width = S::LANES.min(len - at);
        // SAFETY: all offsets are below `len`.
        unsafe {
            let value = s.mul(load_up_to(s, values.cast_const().add(at), width), factor);
            store_up_to(s, values.add(at), value, width);
        }
    }
}
