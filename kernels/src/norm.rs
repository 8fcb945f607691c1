//! RMS norm and layer norm over rows of the f32 residual stream.

use half::bf16;

use crate::Kernels;
use crate::number::Number;
use crate::scratch::Shared;
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::variant::{SimdTask, Variant, dispatch};

/// Rows of one task.
const TASK_ROWS: usize = 4;

impl Kernels {
    /// `out[i] = x[r] / sqrt(mean(x[r]²) + eps) * gain`, where `r` is `row_index[i]`, or `i`
    /// without an index.
    ///
    /// `x` is `[*, hidden]`, `gain` `[hidden]`, `out` `[rows, hidden]`; an index has `rows`
    /// entries.
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each of its own type.
    pub fn rms_norm<T: NormTasks>(
        &self,
        rows: usize,
        hidden: usize,
        x: &[f32],
        gain: &[f32],
        eps: f32,
        row_index: Option<&[u32]>,
        out: &mut [T],
    ) {
        self.norm(Norm { rows, hidden, x, gain, bias: None, eps, row_index }, out);
    }

    /// `out[i] = (x[r] - mean) / sqrt(variance + eps) * gain + bias`; shapes as in
    /// [`Kernels::rms_norm`].
    #[allow(clippy::too_many_arguments)] // The mathematical operands, each of its own type.
    pub fn layer_norm<T: NormTasks>(
        &self,
        rows: usize,
        hidden: usize,
        x: &[f32],
        gain: &[f32],
        bias: &[f32],
        eps: f32,
        row_index: Option<&[u32]>,
        out: &mut [T],
    ) {
        self.norm(Norm { rows, hidden, x, gain, bias: Some(bias), eps, row_index }, out);
    }

    fn norm<T: NormTasks>(&self, norm: Norm<'_>, out: &mut [T]) {
        let Norm { rows, hidden, x, gain, bias, row_index, .. } = norm;
        assert_eq!(gain.len(), hidden, "gain is [hidden]");
        assert!(bias.is_none_or(|bias| bias.len() == hidden), "bias is [hidden]");
        assert_eq!(out.len(), rows * hidden, "out is [rows, hidden]");
        match row_index {
            None => assert_eq!(x.len(), rows * hidden, "x is [rows, hidden]"),
            Some(index) => {
                assert_eq!(index.len(), rows, "the row index has an entry per row");
                let inside = |row: &u32| (*row as usize + 1) * hidden <= x.len();
                assert!(index.iter().all(inside), "the row index points into x");
            }
        }
        let out = Shared(out.as_mut_ptr());
        let variant = self.variant;
        let bytes = rows * hidden * (size_of::<f32>() + size_of::<T>());
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                let from = row_index.map_or(row, |index| index[row] as usize);
                // SAFETY: the variant was checked when the kernels were built; the row lies within
                // `out`, and no other task writes it.
                unsafe {
                    let out = out.pointer().add(row * hidden);
                    T::norm_row(variant, NormRow { norm: &norm, from, out });
                }
            }
        });
    }
}

/// Operands of a norm.
#[derive(Debug)]
pub struct Norm<'a> {
    rows: usize,
    hidden: usize,
    x: &'a [f32],
    gain: &'a [f32],
    /// Present for layer norm.
    bias: Option<&'a [f32]>,
    eps: f32,
    row_index: Option<&'a [u32]>,
}

/// A row of a norm, compiled in this crate once per number format; see `linear::compiled`.
pub trait NormTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>);
}

impl NormTasks for f32 {
    #[inline(never)]
    unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

impl NormTasks for bf16 {
    #[inline(never)]
    unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

/// One row of a norm.
#[derive(Debug)]
pub struct NormRow<'a, T> {
    norm: &'a Norm<'a>,
    from: usize,
    out: *mut T,
}

impl<T: Number> SimdTask for NormRow<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { hidden, x, gain, bias, eps, .. } = *self.norm;
        let x = &x[self.from * hidden..][..hidden];
        let mean = match bias {
            None => 0.0,
            Some(_) => sum_of(s, x, |value, _| value) / hidden as f32,
        };
        let center = s.splat(mean);
        let squares = sum_of(s, x, |value, mask| {
            // Lanes behind the end stay out of the sum.
            let centered = s.mul(s.sub(value, center), mask);
            s.mul(centered, centered)
        });
        let scale = s.splat(1.0 / (squares / hidden as f32 + eps).sqrt());
        for at in (0..hidden).step_by(S::LANES) {
            let width = S::LANES.min(hidden - at);
            // SAFETY: `width` elements remain in x, gain, bias and the output row.
            unsafe {
                let value = load_up_to(s, x.as_ptr().add(at), width);
                let gain = load_up_to(s, gain.as_ptr().add(at), width);
                let mut value = s.mul(s.mul(s.sub(value, center), scale), gain);
                if let Some(bias) = bias {
                    value = s.add(value, load_up_to(s, bias.as_ptr().add(at), width));
                }
                store_up_to(s, self.out.add(at), value, width);
            }
        }
    }
}

/// Sum over `x` of `term(vector, mask)`, where the mask is 1 in lanes that hold an element.
#[inline(always)]
fn sum_of<S: Simd>(s: S, x: &[f32], term: impl Fn(S::F, S::F) -> S::F) -> f32 {
    let one = s.splat(1.0);
    let mut sum = s.zero();
    let whole = x.len() / S::LANES * S::LANES;
    // SAFETY: offsets stay within x; the ones are a vector's worth.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            sum = s.add(sum, term(s.load(x.as_ptr().add(at)), one));
        }
        let tail = x.len() - whole;
        if tail > 0 {
            let ones = [1.0f32; crate::simd::MAX_LANES];
            let mask = s.load_partial(ones.as_ptr(), tail);
            let value = s.load_partial(x.as_ptr().add(whole), tail);
            sum = s.add(sum, term(value, mask));
        }
    }
    s.sum_lanes(sum)
}
