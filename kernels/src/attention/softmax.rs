//! Softmax over a row of scores, in parts that the chunks of a row may run apart.
//!
//! **The order of the sum.** Within a chunk, position `p` goes to lane `(p - first) % LANES`, where
//! `first` is the first position of the chunk that the row sees, and the lanes are added by the
//! tree of `Simd::sum_lanes`; the sums of the chunks are added in order. A maximum has no order.

#![allow(clippy::needless_range_loop, reason = "vectors are surer to stay in registers by index")]

use super::prefetch::Prefetcher;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{Simd, math};

/// The largest of `len >= 1` scores. NaN is passed over here and shows in the exponentials.
///
/// # Safety
/// `scores` holds `len` values.
#[inline(always)]
pub(super) unsafe fn maximum<S: Simd>(s: S, scores: *const f32, len: usize) -> f32 {
    let whole = len / S::LANES * S::LANES;
    // SAFETY: all offsets are below `len`.
    unsafe {
        let mut largest = s.splat(f32::NEG_INFINITY);
        for at in (0..whole).step_by(S::LANES) {
            largest = s.max(s.load(scores.add(at)), largest);
        }
        let mut highest = s.max_lanes(largest);
        for at in whole..len {
            highest = highest.max(*scores.add(at));
        }
        highest
    }
}

/// Vectors of exponentials that are worked on together.
const TOGETHER: usize = 4;

/// Writes `e^(score - highest)` to `out`, which may be `scores`; returns the sum.
///
/// # Safety
/// Both hold `len` values.
#[inline(always)]
pub(super) unsafe fn exponentials<S: Simd>(
    s: S,
    (scores, out, len): (*const f32, *mut f32, usize),
    highest: f32,
    prefetcher: &mut Prefetcher<'_>,
) -> f32 {
    let highest = s.splat(highest);
    let whole = len / S::LANES * S::LANES;
    let mut sum = s.zero();
    // SAFETY: all offsets are below `len`.
    unsafe {
        let mut at = 0;
        while at + TOGETHER * S::LANES <= whole {
            let mut values = [s.zero(); TOGETHER];
            for i in 0..TOGETHER {
                prefetcher.fill_vector(s);
                values[i] = s.sub(s.load(scores.add(at + i * S::LANES)), highest);
            }
            let values = math::exp(s, values);
            for i in 0..TOGETHER {
                s.store(out.add(at + i * S::LANES), values[i]);
                sum = s.add(sum, values[i]);
            }
            at += TOGETHER * S::LANES;
        }
        for at in (at..whole).step_by(S::LANES) {
            prefetcher.fill_vector(s);
            let [value] = math::exp(s, [s.sub(s.load(scores.add(at)), highest)]);
            s.store(out.add(at), value);
            sum = s.add(sum, value);
        }
        if whole < len {
            let width = len - whole;
            let [value] = math::exp(s, [s.sub(load_up_to(s, scores.add(whole), width), highest)]);
            store_up_to(s, out.add(whole), value, width);
            // Lanes behind the end are read back as zeros, so they add nothing.
            sum = s.add(sum, load_up_to(s, out.cast_const().add(whole), width));
        }
    }
    s.sum_lanes(sum)
}

/// `values *= factor`.
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
