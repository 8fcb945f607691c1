//! One row of a norm, on every instruction set.

use half::bf16;

use crate::number::Number;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{MAX_LANES, Simd, SimdElement};
use crate::variant::{SimdTask, Variant, dispatch};

/// Row of a norm, compiled in this crate once per number format; see `linear::compiled`.
pub trait NormTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>);
    /// # Safety
    /// Same contract as [`NormTasks::norm_row`].
    unsafe fn rms_rows(variant: Variant, task: RmsRows<'_, Self>);
}

impl NormTasks for f32 {
    #[inline(never)]
    unsafe fn norm_row(variant: Variant, task: NormRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }

    #[inline(never)]
    unsafe fn rms_rows(variant: Variant, task: RmsRows<'_, Self>) {
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

    #[inline(never)]
    unsafe fn rms_rows(variant: Variant, task: RmsRows<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

/// Operands of a norm of the residual stream.
#[derive(Debug)]
pub struct Norm<'a> {
    pub(crate) rows: usize,
    pub(crate) hidden: usize,
    pub(crate) x: &'a [f32],
    pub(crate) gain: &'a [f32],
    /// Present for layer norm.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) row_index: Option<&'a [u32]>,
}

/// One row of a norm of the residual stream.
#[derive(Debug)]
pub struct NormRow<'a, T> {
    pub(crate) norm: &'a Norm<'a>,
    pub(crate) from: usize,
    /// `[hidden]`.
    pub(crate) out: *mut T,
}

impl<T: Number> SimdTask for NormRow<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { hidden, x, gain, bias, eps, .. } = *self.norm;
        let x = &x[self.from * hidden..][..hidden];
        let mean = match bias {
            None => 0.0,
            Some(_) => {
                // SAFETY: the elements are those of x.
                unsafe { sum_of(s, x.as_ptr(), hidden, |value, _| value) / hidden as f32 }
            }
        };
        let center = s.splat(mean);
        // SAFETY: as above.
        let squares = unsafe {
            sum_of(s, x.as_ptr(), hidden, |value, mask| {
                // Lanes after the end are excluded from the sum.
                let centered = s.mul(s.sub(value, center), mask);
                s.mul(centered, centered)
            })
        };
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

/// Destination of RMS-normed rows.
#[derive(Debug)]
pub enum RmsOut<T> {
    /// Replaces the input rows.
    InPlace(*mut T),
    /// Adds the normed rows of `x` to `out`.
    AddTo { x: *const T, out: *mut f32 },
}

/// Consecutive rows to normalise, each as wide as `gain`.
#[derive(Debug)]
pub struct RmsRows<'a, T> {
    pub(crate) rows: usize,
    pub(crate) gain: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: RmsOut<T>,
}

impl<T: Number> SimdTask for RmsRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsRows { rows, gain, eps, out } = self;
        let (width, from) = (
            gain.len(),
            match out {
                RmsOut::InPlace(x) => x.cast_const(),
                RmsOut::AddTo { x, .. } => x,
            },
        );
        for row in 0..rows {
            // SAFETY: the row is within x.
            let x = unsafe { from.add(row * width) };
            // Lanes after the end are zeros.
            // SAFETY: as above.
            let squares = unsafe { sum_of(s, x, width, |value, _| s.mul(value, value)) };
            let scale = s.splat(1.0 / (squares / width as f32 + eps).sqrt());
            for at in (0..width).step_by(S::LANES) {
                let count = S::LANES.min(width - at);
                // SAFETY: `count` elements remain in the row of x, in gain and in that of the
                // output, which has as many rows.
                unsafe {
                    let gain = load_up_to(s, gain.as_ptr().add(at), count);
                    let value = s.mul(s.mul(load_up_to(s, x.add(at), count), scale), gain);
                    match out {
                        RmsOut::InPlace(x) => store_up_to(s, x.add(row * width + at), value, count),
                        RmsOut::AddTo { out, .. } => {
                            let to = out.add(row * width + at);
                            let sum = s.add(load_up_to(s, to.cast_const(), count), value);
                            store_up_to(s, to, sum, count);
                        }
                    }
                }
            }
        }
    }
}

/// Returns the sum over `len` elements of `term(vector, mask)`, where the mask is 1 in lanes that
/// hold an element, and other lanes of both are 0.
///
/// # Safety
/// `x` is valid for reading `len` elements.
#[inline(always)]
pub(crate) unsafe fn sum_of<S: Simd, T: SimdElement>(
    s: S,
    x: *const T,
    len: usize,
    term: impl Fn(S::F, S::F) -> S::F,
) -> f32 {
    let one = s.splat(1.0);
    let mut sum = s.zero();
    let whole = len / S::LANES * S::LANES;
    // SAFETY: offsets are within x; the ones are a vector's worth.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            sum = s.add(sum, term(T::load(s, x.add(at)), one));
        }
        let tail = len - whole;
        if tail > 0 {
            let ones = [1.0f32; MAX_LANES];
            let mask = s.load_partial(ones.as_ptr(), tail);
            let value = T::load_partial(s, x.add(whole), tail);
            sum = s.add(sum, term(value, mask));
        }
    }
    s.sum_lanes(sum)
}
