//! A row of a shared expert, multiplied by its gate.

use crate::number::Number;
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::variant::SimdTask;

/// A row; see [`crate::Kernels::shared_gate`].
#[derive(Debug)]
pub struct GatedRow<'a, T> {
    pub(super) input: &'a [T],
    pub(super) weight: &'a [f32],
    pub(super) x: &'a [T],
    /// Output, as long as `x`.
    pub(super) out: *mut T,
}

impl<T: Number> SimdTask for GatedRow<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let GatedRow { input, weight, x, out } = self;
        let mut sum = s.zero();
        for at in (0..weight.len()).step_by(S::LANES) {
            let width = S::LANES.min(weight.len() - at);
            // SAFETY: `width` elements are left of both.
            unsafe {
                let value = load_up_to(s, input.as_ptr().add(at), width);
                sum = s.fma(value, load_up_to(s, weight.as_ptr().add(at), width), sum);
            }
        }
        let factor = s.splat(1.0 / (1.0 + (-s.sum_lanes(sum)).exp()));
        for at in (0..x.len()).step_by(S::LANES) {
            let width = S::LANES.min(x.len() - at);
            // SAFETY: `width` elements are left of both.
            unsafe {
                let value = load_up_to(s, x.as_ptr().add(at), width);
                store_up_to(s, out.add(at), s.mul(factor, value), width);
            }
        }
    }
}
