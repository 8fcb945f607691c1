//! Rotary position embedding in rotate-half layout, in place.

use half::bf16;

use crate::Kernels;
use crate::linear::HeadSpan;
use crate::number::Number;
use crate::scratch::{ScratchLimits, SharedPointer};
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::variant::{SimdTask, Variant, dispatch};

/// Rows of one task.
const TASK_ROWS: usize = 4;

/// Returns the floats of scratch per thread: a row's cosines and sines.
pub(crate) fn thread_len(limits: &ScratchLimits) -> usize {
    limits.head_dim.next_multiple_of(16) + 16
}

/// Parameters of the rotation of a call's rows.
#[derive(Debug, Clone, Copy)]
pub struct RopeTables<'a> {
    /// Radians per position, `[tables, rotary_dim / 2]`.
    pub inverse_frequencies: &'a [f32],
    /// Number of elements rotated at the start of each head; even.
    pub rotary_dim: usize,
    /// Factor of every sine and cosine.
    pub attention_factor: f32,
    /// Index of the table of each row; `None`: the first one for all rows.
    pub table_of_row: Option<&'a [u32]>,
}

impl<'a> RopeTables<'a> {
    /// Returns one table for all rows, with whole heads rotated and no factor.
    pub fn whole(inverse_frequencies: &'a [f32]) -> RopeTables<'a> {
        RopeTables {
            inverse_frequencies,
            rotary_dim: 2 * inverse_frequencies.len(),
            attention_factor: 1.0,
            table_of_row: None,
        }
    }

    /// # Panics
    /// If the tables do not match the shape, or a row refers to a table that does not exist.
    pub(crate) fn check(&self, rows: usize, head_dim: usize) {
        let half = self.rotary_dim / 2;
        assert!(half > 0 && self.rotary_dim == 2 * half, "rotary_dim is even");
        assert!(self.rotary_dim <= head_dim, "rotary_dim is at most head_dim");
        let len = self.inverse_frequencies.len();
        let whole = len > 0 && len.is_multiple_of(half);
        assert!(whole, "inverse_frequencies is [tables, rotary_dim / 2]");
        if let Some(table_of_row) = self.table_of_row {
            assert_eq!(table_of_row.len(), rows, "table_of_row has an entry per row");
            let inside = |table: &u32| (*table as usize) < len / half;
            assert!(table_of_row.iter().all(inside), "table_of_row points into the tables");
        }
    }

    /// Fills a row's cosines and sines, `[rotary_dim / 2]` each.
    pub(crate) fn fill(&self, row: usize, position: u32, cosines: &mut [f32], sines: &mut [f32]) {
        let half = self.rotary_dim / 2;
        let table = self.table_of_row.map_or(0, |table_of_row| table_of_row[row] as usize);
        let position = position as f32;
        let frequencies = &self.inverse_frequencies[table * half..][..half];
        for (index, frequency) in frequencies.iter().enumerate() {
            let (sine, cosine) = (position * frequency).sin_cos();
            (sines[index], cosines[index]) =
                (sine * self.attention_factor, cosine * self.attention_factor);
        }
    }
}

impl Kernels {
    /// Rotates each pair `(x[i], x[i + rotary_dim/2])` of every head by `position * frequency[i]`,
    /// with the angle, its sine and its cosine in f32, and multiplies it by the attention factor.
    /// Elements from `rotary_dim` on are unchanged.
    ///
    /// `x` is `[rows, heads, head_dim]`, `positions` `[rows]`.
    ///
    /// # Panics
    /// If shapes do not match, or a table does not exist.
    pub fn rope<T: RopeTasks>(
        &self,
        rows: usize,
        heads: usize,
        head_dim: usize,
        positions: &[u32],
        tables: &RopeTables<'_>,
        x: &mut [T],
    ) {
        let span = HeadSpan { width: heads * head_dim, first: 0 };
        self.rope_of_span(rows, span, [heads, head_dim], positions, tables, x);
    }

    /// Rotates the start of consecutive heads that are a part of each row, like [`Kernels::rope`].
    /// `x` is `[rows, span.width]`, of which the heads, `[heads, head_dim]`, begin at `span.first`.
    ///
    /// # Panics
    /// If shapes do not match, or a table does not exist.
    pub fn rope_of_span<T: RopeTasks>(
        &self,
        rows: usize,
        span: HeadSpan,
        [heads, head_dim]: [usize; 2],
        positions: &[u32],
        tables: &RopeTables<'_>,
        x: &mut [T],
    ) {
        let HeadSpan { width, first: start } = span;
        assert!(head_dim <= self.limits.head_dim, "head_dim is beyond the scratch limits");
        // Checked here rather than in a task: a panic in a task aborts the process without a
        // message.
        tables.check(rows, head_dim);
        assert_eq!(positions.len(), rows, "positions has an entry per row");
        assert_eq!(x.len(), rows * width, "x is [rows, width]");
        assert!(start + heads * head_dim <= width, "a row contains the heads");
        let half = tables.rotary_dim / 2;
        let bytes = 4 * rows * heads * head_dim * size_of::<T>();
        let x = SharedPointer(x.as_mut_ptr());
        let (variant, per_thread) = (self.variant, &self.per_thread);
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, thread| {
            // SAFETY: this thread's scratch holds `head_dim` floats and more.
            let table =
                unsafe { std::slice::from_raw_parts_mut(per_thread.for_thread(thread), 2 * half) };
            let (cosines, sines) = table.split_at_mut(half);
            let first = task * TASK_ROWS;
            for (row, position) in positions.iter().enumerate().skip(first).take(TASK_ROWS) {
                tables.fill(row, *position, cosines, sines);
                // SAFETY: the variant was checked when the kernels were built; the row is within x,
                // and no other task accesses it.
                unsafe {
                    let x = x.pointer().add(row * width + start);
                    T::rope_row(variant, RopeRow { x, heads, head_dim, cosines, sines });
                }
            }
        });
    }
}

/// Row of rotary positions, compiled in this crate once per number format; see `linear::compiled`.
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
    /// `[heads, head_dim]`.
    x: *mut T,
    heads: usize,
    /// At least `2 * half`.
    head_dim: usize,
    /// `[half]`.
    cosines: &'a [f32],
    /// `[half]`.
    sines: &'a [f32],
}

impl<T: Number> SimdTask for RopeRow<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RopeRow { x, heads, head_dim, cosines, sines } = self;
        let half = cosines.len();
        for head in 0..heads {
            for at in (0..half).step_by(S::LANES) {
                let width = S::LANES.min(half - at);
                // SAFETY: `width` elements remain in both halves of the head and in the table.
                unsafe {
                    let low = x.add(head_dim * head + at);
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
