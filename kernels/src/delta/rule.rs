//! The gated delta rule of a value head over a sequence's rows, with a decay of the head or of each
//! element of its key.

use model::delta::DeltaNet;

use super::recurrence::{Block, Recurrence};
use crate::number::Number;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{Simd, math};

/// Maximum number of elements of a key, which is stored on the stack.
pub(crate) const KEY_DIM_MAX: usize = 1 << 10;
/// Added to the squared length of q and k.
const LENGTH_EPS: f32 = 1e-6;
/// Threshold above which softplus returns its argument.
const SOFTPLUS_LINEAR: f32 = 20.0;

/// A head of a sequence; see [`crate::Kernels::delta_rule`]. With `BY_CHANNEL` each element of a
/// key has a decay of its own.
#[derive(Debug)]
pub struct DeltaRule<T, const BY_CHANNEL: bool> {
    pub(super) net: DeltaNet,
    /// The value head.
    pub(super) head: usize,
    /// Logarithm of its rate.
    pub(super) rate: f32,
    /// Values added to a: one or, by channel, `[key_dim]`.
    pub(super) biases: *const f32,
    /// `[rows, channels]`.
    pub(super) mixed: *const T,
    /// b and a, `[rows, 2, value_heads]`; by channel b alone, `[rows, value_heads]`.
    pub(super) ba: *const T,
    /// a by channel, `[rows, value_heads, key_dim]`; not read otherwise.
    pub(super) decays: *const T,
    /// `[rows, value_heads, value_dim]`.
    pub(super) out: *mut T,
    /// Number of elements from the output of a row to that of the next; 0 if it is not needed.
    pub(super) out_stride: usize,
    /// `[key_dim, value_dim]`.
    pub(super) state: *mut f32,
}

/// Effect of a row on all columns of a head.
#[derive(Debug)]
pub struct DeltaStep {
    /// q and k divided by their lengths, q also by the root of `key_dim`; by channel each element
    /// also multiplied by its decay: the state before the row is read at them.
    q: [f32; KEY_DIM_MAX],
    k: [f32; KEY_DIM_MAX],
    /// k without decays; used by channel.
    plain_k: [f32; KEY_DIM_MAX],
    /// Factors by which the state decays; used by channel.
    decays: [f32; KEY_DIM_MAX],
    /// Dot product of q and k, without decays.
    qk: f32,
    /// Factor by which the state decays; not used by channel.
    decay: f32,
    /// Factor of the correction.
    beta: f32,
}

impl<T: Number, const BY_CHANNEL: bool> Recurrence for DeltaRule<T, BY_CHANNEL> {
    type Step = DeltaStep;

    fn new_step() -> DeltaStep {
        let zeros = [0.0; KEY_DIM_MAX];
        let (qk, decay, beta) = (0.0, 0.0, 0.0);
        DeltaStep { q: zeros, k: zeros, plain_k: zeros, decays: zeros, qk, decay, beta }
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
        let ba = self.ba.wrapping_add(row * self.net.rates_size() + self.head);
        // SAFETY: the row's q, k, b and a; both copies have space for a key.
        unsafe {
            let q_scale = 1.0 / (copy(s, q, &mut step.q, key_dim) + LENGTH_EPS).sqrt();
            let k_scale = 1.0 / (copy(s, k, &mut step.k, key_dim) + LENGTH_EPS).sqrt();
            let q_scale = q_scale / (key_dim as f32).sqrt();
            step.qk = scale(s, step, q_scale, k_scale, key_dim);
            step.beta = 1.0 / (1.0 + (-(*ba).to_f32()).exp());
            if BY_CHANNEL {
                let a = self.decays.add((row * value_heads + self.head) * key_dim);
                decay_by_channel(s, step, self.rate, a, self.biases, key_dim);
            } else {
                let a = (*ba.add(value_heads)).to_f32();
                step.decay = (-self.rate.exp() * softplus(a + *self.biases)).exp();
            }
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "vectors are surer kept in registers by index")]
    unsafe fn step<S: Simd, const N: usize>(
        &self,
        s: S,
        step: &DeltaStep,
        block: Block,
        row: usize,
        at: usize,
        width: usize,
    ) {
        let DeltaNet { key_dim, value_dim, .. } = self.net;
        let (mut at_k, mut at_q) = ([s.zero(); N], [s.zero(); N]);
        // SAFETY: the columns are the head's, of its state, its values and its output.
        unsafe {
            for key in 0..key_dim {
                let (k, q) = (s.splat(step.k[key]), s.splat(step.q[key]));
                for n in 0..N {
                    let state = block.vector::<S>(key, n).cast_const();
                    let state = load_up_to(s, state, width);
                    at_k[n] = s.fma(state, k, at_k[n]);
                    at_q[n] = s.fma(state, q, at_q[n]);
                }
            }
            let (kept, beta) = (s.splat(step.decay), s.splat(step.beta));
            let value_at = 2 * self.net.key_size() + self.head * value_dim + at;
            let values = self.mixed.add(row * self.net.channels() + value_at);
            let out = self.out.add(row * self.out_stride + self.head * value_dim + at);
            let mut corrections = [s.zero(); N];
            for n in 0..N {
                if !BY_CHANNEL {
                    (at_k[n], at_q[n]) = (s.mul(kept, at_k[n]), s.mul(kept, at_q[n]));
                }
                let value = load_up_to(s, values.add(n * S::LANES), width);
                corrections[n] = s.mul(beta, s.sub(value, at_k[n]));
                let read = s.fma(s.splat(step.qk), corrections[n], at_q[n]);
                store_up_to(s, out.add(n * S::LANES), read, width);
            }
            for key in 0..key_dim {
                let (k, kept) = match BY_CHANNEL {
                    true => (s.splat(step.plain_k[key]), s.splat(step.decays[key])),
                    false => (s.splat(step.k[key]), kept),
                };
                for n in 0..N {
                    let state = block.vector::<S>(key, n);
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

/// Computes the decays of a row's channels and multiplies q and k by them.
///
/// # Safety
/// `a` and `biases` are valid for `len` elements, which are at most [`KEY_DIM_MAX`].
#[inline(always)]
unsafe fn decay_by_channel<S: Simd, T: Number>(
    s: S,
    step: &mut DeltaStep,
    rate: f32,
    a: *const T,
    biases: *const f32,
    len: usize,
) {
    // The bound keeps the product with a softplus of 0 a number.
    let rate = s.splat(-rate.exp().min(f32::MAX));
    for at in (0..len).step_by(S::LANES) {
        let width = S::LANES.min(len - at);
        let (q, k) = (step.q[at..].as_mut_ptr(), step.k[at..].as_mut_ptr());
        // SAFETY: the caller's promise; `width` elements of all are left.
        unsafe {
            let sum = s.add(load_up_to(s, a.add(at), width), load_up_to(s, biases.add(at), width));
            let [softplus] = math::softplus(s, [sum]);
            let [decay] = math::exp(s, [s.mul(rate, softplus)]);
            let plain_k = load_up_to(s, k.cast_const(), width);
            store_up_to(s, step.decays[at..].as_mut_ptr(), decay, width);
            store_up_to(s, step.plain_k[at..].as_mut_ptr(), plain_k, width);
            store_up_to(s, k, s.mul(decay, plain_k), width);
            store_up_to(s, q, s.mul(decay, load_up_to(s, q.cast_const(), width)), width);
        }
    }
}

/// Computes `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    if x > SOFTPLUS_LINEAR { x } else { x.exp().ln_1p() }
}
