//! The recurrence of a head of Mamba2 over a sequence's rows.

use model::mamba::Mamba;

use super::recurrence::{Block, Recurrence};
use super::rule::softplus;
use super::slots::Slot;
use crate::number::Number;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{Simd, math};

/// Maximum number of elements of B and C, which are stored on the stack.
pub(crate) const STATE_DIM_MAX: usize = 1 << 10;

/// A head of a sequence; see [`crate::Kernels::mamba_scan`].
#[derive(Debug, Clone, Copy)]
pub struct Scan<T> {
    pub(super) mamba: Mamba,
    pub(super) head: usize,
    /// Logarithm of the head's rate, the bias of its dt, and the factor of x in its output.
    pub(super) numbers: [f32; 3],
    /// `[rows, channels]`.
    pub(super) mixed: *const T,
    /// dt of a row's heads, `dt_stride` elements before those of the next row.
    pub(super) dt: *const T,
    pub(super) dt_stride: usize,
    /// z of a row, `z_stride` elements before that of the next row.
    pub(super) z: *const T,
    pub(super) z_stride: usize,
    /// `[rows, heads, head_dim]`.
    pub(super) out: *mut T,
    /// Number of elements from the output of a row to that of the next; 0 if it is not needed.
    pub(super) out_stride: usize,
    /// `[state_dim, head_dim]`.
    pub(super) state: *mut f32,
}

/// Effect of a row on all elements of a head.
#[derive(Debug)]
pub struct ScanStep {
    b: [f32; STATE_DIM_MAX],
    c: [f32; STATE_DIM_MAX],
    /// Time step.
    dt: f32,
    /// Factor by which the state decays.
    decay: f32,
}

impl<T: Number> Scan<T> {
    /// Returns the head over the rows of drafts in a slot, whose results are not needed.
    pub(super) fn of_drafts(self, slot: Slot) -> Scan<T> {
        let (mixed, dt) = (slot.drafts(0), slot.drafts(self.mamba.channels()));
        let (dt_stride, z_stride, out_stride) = (self.mamba.heads, 0, 0);
        Scan { mixed, dt, dt_stride, z_stride, out_stride, ..self }
    }
}

impl<T: Number> Recurrence for Scan<T> {
    type Step = ScanStep;

    fn new_step() -> ScanStep {
        ScanStep { b: [0.0; STATE_DIM_MAX], c: [0.0; STATE_DIM_MAX], dt: 0.0, decay: 0.0 }
    }

    fn state(&self) -> (*mut f32, [usize; 2]) {
        (self.state, [self.mamba.state_dim, self.mamba.head_dim])
    }

    #[inline(always)]
    unsafe fn prepare<S: Simd>(&self, s: S, step: &mut ScanStep, row: usize) {
        let Mamba { state_dim, groups, .. } = self.mamba;
        let of_group = self.mamba.group(self.head) * state_dim;
        let b_at = row * self.mamba.channels() + self.mamba.inner_size() + of_group;
        let b = self.mixed.wrapping_add(b_at);
        let c = b.wrapping_add(groups * state_dim);
        let dt = self.dt.wrapping_add(row * self.dt_stride + self.head);
        // SAFETY: the row's B, C and dt; both copies have space for a state.
        unsafe {
            widen(s, b, &mut step.b, state_dim);
            widen(s, c, &mut step.c, state_dim);
            let [rate, bias, _] = self.numbers;
            step.dt = self.mamba.limit(softplus((*dt).to_f32() + bias));
            step.decay = (-rate.exp() * step.dt).exp();
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "vectors are surer kept in registers by index")]
    unsafe fn step<S: Simd, const N: usize>(
        &self,
        s: S,
        step: &ScanStep,
        block: Block,
        row: usize,
        at: usize,
        width: usize,
    ) {
        let Mamba { state_dim, head_dim, .. } = self.mamba;
        let of_head = self.head * head_dim + at;
        // SAFETY: the elements are the head's, of its state, of x and z, and of its output.
        unsafe {
            let x = self.mixed.add(row * self.mamba.channels() + of_head);
            let z = self.z.add(row * self.z_stride + of_head);
            let out = self.out.add(row * self.out_stride + of_head);
            let (dt, decay) = (s.splat(step.dt), s.splat(step.decay));
            let (mut taken_in, mut read) = ([s.zero(); N], [s.zero(); N]);
            for n in 0..N {
                taken_in[n] = s.mul(dt, load_up_to(s, x.add(n * S::LANES), width));
            }
            for index in 0..state_dim {
                let (b, c) = (s.splat(step.b[index]), s.splat(step.c[index]));
                for n in 0..N {
                    let state = block.vector::<S>(index, n);
                    let kept = s.mul(decay, load_up_to(s, state.cast_const(), width));
                    let new = s.fma(b, taken_in[n], kept);
                    store_up_to(s, state, new, width);
                    read[n] = s.fma(c, new, read[n]);
                }
            }
            let skip = s.splat(self.numbers[2]);
            for n in 0..N {
                let result = s.fma(skip, load_up_to(s, x.add(n * S::LANES), width), read[n]);
                let [gate] = math::silu(s, [load_up_to(s, z.add(n * S::LANES), width)]);
                store_up_to(s, out.add(n * S::LANES), s.mul(result, gate), width);
            }
        }
    }
}

/// Converts `len` elements to f32.
///
/// # Safety
/// `from` is valid for `len` elements.
#[inline(always)]
unsafe fn widen<S: Simd, T: Number>(
    s: S,
    from: *const T,
    to: &mut [f32; STATE_DIM_MAX],
    len: usize,
) {
    for at in (0..len).step_by(S::LANES) {
        let width = S::LANES.min(len - at);
        // SAFETY: the caller's promise.
        unsafe { store_up_to(s, to[at..].as_mut_ptr(), load_up_to(s, from.add(at), width), width) };
    }
}
