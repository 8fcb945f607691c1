//! Rotary position embedding, rotate-half form, in place.

use half::bf16;

use crate::Kernels;
use crate::number::Number;
use crate::scratch::{ScratchLimits, Shared};
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::variant::{SimdTask, Variant, dispatch};

/// Rows of one task.
const TASK_ROWS: usize = 4;

/// Floats of scratch per thread: a row's cosines and sines.
pub(crate) fn thread_len(limits: &ScratchLimits) -> usize {
    limits.head_dim.next_multiple_of(16) + 16
}

impl Kernels {
    /// Rotates each pair `(x[i], x[i + head_dim/2])` of every head by `position * frequency[i]`,
    /// the angle, its sine and its cosine in f32.
    ///
    /// `x` is `[rows, heads, head_dim]`, `positions` `[rows]`, `inverse_frequencies`
    /// `[head_dim / 2]`.
    pub fn rope<T: RopeTasks>(
        &self,
        rows: usize,
        heads: usize,
        head_dim: usize,
        positions: &[u32],
        inverse_frequencies: &[f32],
        x: &mut [T],
    ) {
        let half = head_dim / 2;
        assert!(head_dim <= self.limits.head_dim, "head_dim is beyond the scratch limits");
        assert_eq!(head_dim, 2 * half, "head_dim is even");
        assert_eq!(positions.len(), rows, "positions has an entry per row");
        assert_eq!(inverse_frequencies.len(), half, "inverse_frequencies is [head_dim / 2]");
        assert_eq!(x.len(), rows * heads * head_dim, "x is [rows, heads, head_dim]");
        let row_elements = heads * head_dim;
        let bytes = 4 * rows * row_elements * size_of::<T>();
        let x = Shared(x.as_mut_ptr());
        let (variant, per_thread) = (self.variant, &self.per_thread);
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, thread| {
            // SAFETY: this thread's scratch holds `head_dim` floats and more.
            let table = unsafe { std::slice::from_raw_parts_mut(per_thread.of(thread), head_dim) };
            let (cosines, sines) = table.split_at_mut(half);
            let first = task * TASK_ROWS;
            for (row, position) in positions.iter().enumerate().skip(first).take(TASK_ROWS) {
                let position = *position as f32;
                for (index, frequency) in inverse_frequencies.iter().enumerate() {
                    let angle = position * frequency;
                    (sines[index], cosines[index]) = angle.sin_cos();
                }
                // SAFETY: the variant was checked when the kernels were built; the row lies within
                // x, and no other task touches it.
                unsafe {
                    let x = x.pointer().add(row * row_elements);
                    T::rope_row(variant, RopeRow { x, heads, cosines, sines });
                }
            }
        });
    }
}

/// A row of rotary positions, compiled in this crate once per number format; see
/// `linear::compiled`.
pub trait RopeTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn rope_row(variant: Variant, task: RopeRow<'_, Self>);
}

impl RopeTasks for f32 {
    #[inline(never)]
    unsafe fn rope_row(variant: Variant, task: RopeRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

impl RopeTasks for bf16 {
    #[inline(never)]
    unsafe fn rope_row(variant: Variant, task: RopeRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

/// All heads of one row.
#[derive(Debug)]
pub struct RopeRow<'a, T> {
    /// `[heads, 2 * half]`.
    x: *mut T,
    heads: usize,
    /// `[half]`.
    cosines: &'a [f32],
    /// `[half]`.
    sines: &'a [f32],
}

impl<T: Number> SimdTask for RopeRow<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RopeRow { x, heads, cosines, sines } = self;
        let half = cosines.len();
        for head in 0..heads {
            for at in (0..half).step_by(S::LANES) {
                let width = S::LANES.min(half - at);
                // SAFETY: `width` elements remain in both halves of the head and in the table.
                unsafe {
                    let low = x.add(2 * half * head + at);
                    let high = low.add(half);
                    let (a, b) = (load_up_to(s, low, width), load_up_to(s, high, width));
                    let cos = load_up_to(s, cosines.as_ptr().add(at), width);
                    let sin = load_up_to(s, sines.as_ptr().add(at), width);
                    store_up_to(s, low, s.sub(s.mul(a, cos), s.mul(b, sin)), width);
                    store_up_to(s, high, s.add(s.mul(b, cos), s.mul(a, sin)), width);
                }
            }
        }
    }
}
