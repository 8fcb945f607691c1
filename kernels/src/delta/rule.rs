//! The gated delta rule of a value head over a sequence's rows.

use model::delta::DeltaNet;

use super::recurrence::Recurrence;
use crate::number::Number;
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};

/// Maximum number of elements of a key, which is stored on the stack.
pub(crate) const KEY_DIM_MAX: usize = 1 << 10;
/// Added to the squared length of q and k.
const LENGTH_EPS: f32 = 1e-6;
/// Threshold above which softplus returns its argument.
const SOFTPLUS_LINEAR: f32 = 20.0;

/// A head of a sequence; see [`crate::Kernels::delta_rule`].
#[derive(Debug)]
pub struct DeltaRule<T> {
    pub(super) net: DeltaNet,
    /// The value head.
    pub(super) head: usize,
    /// Logarithm of its rate, and the value added to a.
    pub(super) rates: [f32; 2],
    /// `[rows, channels]`.
    pub(super) mixed: *const T,
    /// `[rows, 2, value_heads]`.
    pub(super) ba: *const T,
    /// `[rows, value_heads, value_dim]`.
    pub(super) out: *mut T,
    /// `[key_dim, value_dim]`.
    pub(super) state: *mut f32,
}

/// Effect of a row on all columns of a head.
#[derive(Debug)]
pub struct DeltaStep {
    /// q and k divided by their lengths, q also by the root of `key_dim`.
    q: [f32; KEY_DIM_MAX],
    k: [f32; KEY_DIM_MAX],
    /// Dot product of q and k.
    qk: f32,
    /// Factor by which the state decays.
    decay: f32,
    /// Factor of the correction.
    beta: f32,
}

impl<T: Number> Recurrence for DeltaRule<T> {
    type Step = DeltaStep;

    fn new_step() -> DeltaStep {
        DeltaStep { q: [0.0; KEY_DIM_MAX], k: [0.0; KEY_DIM_MAX], qk: 0.0, decay: 0.0, beta: 0.0 }
    }

    fn state(&self) -> (*mut f32, [usize; 2]) {
        (self.state, [self.net.key_dim, self.net.value_dim])
    }

    #[inline(always)]
    unsafe fn prepare<S: Simd>(&self, s: S, step: &mut DeltaStep, row: usize) {
        let DeltaNet { key_dim, value_heads, .. } = self.net;
        let key_head = self.net.key_head(self.head);
        let q = self.mixed.wrapping_add(row * self.net.channels() + key_head * key_dim);
        let k = q.wrapping_add(self.net.key_size());
        let ba = self.ba.wrapping_add(row * 2 * value_heads + self.head);
        // SAFETY: the row's q, k, b and a; both copies have space for a key.
        unsafe {
            let q_scale = 1.0 / (copy(s, q, &mut step.q, key_dim) + LENGTH_EPS).sqrt();
            let k_scale = 1.0 / (copy(s, k, &mut step.k, key_dim) + LENGTH_EPS).sqrt();
            let q_scale = q_scale / (key_dim as f32).sqrt();
            step.qk = scale(s, step, q_scale, k_scale, key_dim);
            let (b, a) = ((*ba).to_f32(), (*ba.add(value_heads)).to_f32());
            let [rate, bias] = self.rates;
            step.beta = 1.0 / (1.0 + (-b).exp());
            step.decay = (-rate.exp() * softplus(a + bias)).exp();
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "vectors are surer kept in registers by index")]
    unsafe fn step<S: Simd, const N: usize>(
        &self,
        s: S,
        step: &DeltaStep,
        row: usize,
        at: usize,
        width: usize,
    ) {
        let DeltaNet { key_dim, value_dim, .. } = self.net;
        let place = |key: usize, n: usize| key * value_dim + at + n * S::LANES;
        let (mut at_k, mut at_q) = ([s.zero(); N], [s.zero(); N]);
        // SAFETY: the columns are the head's, of its state, its values and its output.
        unsafe {
            for key in 0..key_dim {
                let (k, q) = (s.splat(step.k[key]), s.splat(step.q[key]));
                for n in 0..N {
                    let state = self.state.cast_const().add(place(key, n));
                    let state = load_up_to(s, state, width);
                    at_k[n] = s.fma(state, k, at_k[n]);
                    at_q[n] = s.fma(state, q, at_q[n]);
                }
            }
            let (kept, beta) = (s.splat(step.decay), s.splat(step.beta));
            let value_at = 2 * self.net.key_size() + self.head * value_dim + at;
            let values = self.mixed.add(row * self.net.channels() + value_at);
            let out = self.out.add((row * self.net.value_heads + self.head) * value_dim + at);
            let mut corrections = [s.zero(); N];
            for n in 0..N {
                let value = load_up_to(s, values.add(n * S::LANES), width);
                corrections[n] = s.mul(beta, s.sub(value, s.mul(kept, at_k[n])));
                let read = s.fma(s.splat(step.qk), corrections[n], s.mul(kept, at_q[n]));
                store_up_to(s, out.add(n * S::LANES), read, width);
            }
            for key in 0..key_dim {
                let k = s.splat(step.k[key]);
                for n in 0..N {
                    let state = self.state.add(place(key, n));
                    let before = s.mul(kept, load_up_to(s, state.cast_const(), width));
                    store_up_to(s, state, s.fma(k, corrections[n], before), width);
                }
            }
        }
    }
}

/// Copies `len` elements and returns the sum of their squares.
///
/// # Safety
/// `from` is valid for `len` elements.
#[inline(always)]
unsafe fn copy<S: Simd, T: Number>(
    s: S,
    from: *const T,
    to: &mut [f32; KEY_DIM_MAX],
    len: usize,
) -> f32 {
    let mut squares = s.zero();
    for at in (0..len).step_by(S::LANES) {
        let width = S::LANES.min(len - at);
        // SAFETY: the caller's promise; lanes after the end are zeros.
        unsafe {
            let value = load_up_to(s, from.add(at), width);
            squares = s.fma(value, value, squares);
            store_up_to(s, to[at..].as_mut_ptr(), value, width);
        }
    }
    s.sum_lanes(squares)
}

/// Scales q and k and returns their product.
///
/// # Safety
/// `len` is at most [`KEY_DIM_MAX`].
#[inline(always)]
unsafe fn scale<S: Simd>(s: S, step: &mut DeltaStep, of_q: f32, of_k: f32, len: usize) -> f32 {
    let mut product = s.zero();
    for at in (0..len).step_by(S::LANES) {
        let width = S::LANES.min(len - at);
        let (q, k) = (step.q[at..].as_mut_ptr(), step.k[at..].as_mut_ptr());
        // SAFETY: `width` elements of both are left.
        unsafe {
            let scaled_q = s.mul(s.splat(of_q), load_up_to(s, q.cast_const(), width));
            let scaled_k = s.mul(s.splat(of_k), load_up_to(s, k.cast_const(), width));
            product = s.fma(scaled_q, scaled_k, product);
            store_up_to(s, q, scaled_q, width);
            store_up_to(s, k, scaled_k, width);
        }
    }
    s.sum_lanes(product)
}

/// Computes `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LINEAR { x } else { x.exp().ln_1p() }
}
