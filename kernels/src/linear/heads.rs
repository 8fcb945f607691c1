//! Linears of the heads of latent attention: each head of a row is multiplied by the matrix of that
//! head. The matrices are contiguous, `[heads, n, k]`.
//!
//! A task takes some rows and columns of one head. It gathers and packs its rows itself, since no
//! other head uses them. A head of a row has the bits of an ordinary linear of its elements and its
//! matrix.

use std::ops::Range;

use super::call::Call;
use super::compiled::LinearTasks;
use super::epilogue::{Epilogue, LinearOut};
use super::experts::{ExpertWeight, padded_len, steps};
use super::sizes::{PACK_ROWS, PANELS, packed_row};
use crate::Kernels;
use crate::scratch::{ScratchLimits, SharedPointer, ThreadScratch};
use crate::simd::MAX_LANES;

/// Number of tasks per thread below which the columns of a head are divided among tasks.
const THREAD_TASKS: usize = 2;
/// Columns of the narrowest task, and a divisor of those of all other tasks.
const MIN_COLUMNS: usize = PANELS * MAX_LANES;

/// Elements of each head, within the heads of a tensor `[rows, heads, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSpan {
    /// Number of elements of a head.
    pub width: usize,
    /// First of the elements that a linear reads or writes.
    pub first: usize,
}

/// A linear of every head.
#[derive(Debug)]
pub struct HeadLinear<'a, T> {
    pub rows: usize,
    pub heads: usize,
    /// Outputs of a head.
    pub n: usize,
    /// Inputs of a head.
    pub k: usize,
    /// `[rows, heads, x_span.width]`.
    pub x: &'a [T],
    pub x_span: HeadSpan,
    /// The matrices of all heads, `[heads, n, k]`.
    pub weight: ExpertWeight<'a, T>,
    /// `[rows, heads, out_span.width]`; elements outside the span are unchanged.
    pub out: &'a mut [T],
    pub out_span: HeadSpan,
}

/// Scratch of each thread: gathered rows, and packed rows.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Maximum number of inputs of a head.
    inputs: usize,
    rows: usize,
    per_thread: ThreadScratch,
}

impl Workspace {
    /// Allocates scratch for heads of up to `inputs` inputs; none for 0 inputs.
    pub(crate) fn new(threads: usize, limits: &ScratchLimits, inputs: usize) -> Workspace {
        let rows = limits.rows.clamp(1, PACK_ROWS);
        let packed = padded_len(rows * packed_row(inputs)) + MAX_LANES;
        let len = if inputs == 0 { 0 } else { gathered_len(rows, inputs) + packed };
        Workspace { inputs, rows, per_thread: ThreadScratch::new(threads, len) }
    }
}

/// Returns the number of floats of gathered rows, which are whole lines.
fn gathered_len(rows: usize, inputs: usize) -> usize {
    (rows * inputs).next_multiple_of(MAX_LANES)
}

impl Kernels {
    /// Computes the linear of every head. Each head of a row has the bits of [`Kernels::linear`] or
    /// [`Kernels::linear_grouped`] for its elements and its matrix.
    ///
    /// # Panics
    /// If lengths or spans do not agree, or a head has more inputs than
    /// [`Kernels::with_head_linears`] was given.
    pub fn head_linear<T: LinearTasks>(&self, linear: HeadLinear<'_, T>) {
        let HeadLinear { rows, heads, n, k, x, x_span, weight, out, out_span } = linear;
        let Workspace { inputs, rows: block_rows, ref per_thread } = self.head_linears;
        assert!((1..=inputs).contains(&k), "{k} inputs of a head are beyond the scratch limits");
        assert_eq!(x.len(), rows * heads * x_span.width, "x is [rows, heads, width]");
        assert_eq!(out.len(), rows * heads * out_span.width, "out is [rows, heads, width]");
        assert!(x_span.first + k <= x_span.width, "the inputs are within a head of x");
        assert!(out_span.first + n <= out_span.width, "the outputs are within a head of out");
        let len = out.len();
        let all = Call {
            rows,
            n,
            stride: heads * out_span.width,
            k,
            x: x.as_ptr(),
            weight: weight.checked(heads, n, k),
            activations: self.activations,
            bias: None,
            epilogue: Epilogue::new(LinearOut::Store(out), len),
        };
        let blocks = rows.div_ceil(block_rows);
        let wanted = THREAD_TASKS * self.pool.threads();
        let pieces = wanted.div_ceil((heads * blocks).max(1)).clamp(1, n.div_ceil(MIN_COLUMNS));
        let (variant, results) = (self.variant, &self.per_thread);
        self.run_linear(heads * blocks * pieces, &|task, thread| {
            let (piece, head, block) =
                (task % pieces, task / pieces % heads, task / pieces / heads);
            let first = block * block_rows;
            let count = block_rows.min(rows - first);
            let place = first * heads + head;
            let scratch = per_thread.for_thread(thread);
            let packed = SharedPointer(scratch.wrapping_add(gathered_len(block_rows, inputs)));
            let (x, out) = (place * x_span.width + x_span.first, place * out_span.width);
            // SAFETY: the elements are within x; the scratch is this thread's own and has space for
            // `block_rows` rows of `inputs` elements, of at most four bytes each.
            let x = unsafe { all.gather(x, heads * x_span.width, count, scratch.cast()) };
            let call = all.of_head(head, count, x, out + out_span.first);
            let layout = call.layout(variant);
            let results = results.for_thread(thread);
            // SAFETY: the variant was checked when the kernels were built; the packed rows are this
            // thread's own; rows and columns are within the shapes that were asserted, and no other
            // task writes these columns of this head and these rows.
            unsafe {
                for tile in 0..layout.tiles.count {
                    call.pack(variant, &layout, packed, tile, 0..layout.blocks());
                }
                for cols in steps(columns(n, piece, pieces), layout.tiles.task_cols) {
                    let tiles = 0..layout.tiles.count;
                    call.outputs(variant, &layout, packed, tiles, cols, results);
                }
            }
        });
    }
}

impl<T: LinearTasks> Call<T> {
    /// Copies `rows` rows of inputs, `stride` elements apart from element `first` of x on, to
    /// consecutive memory, and returns their new address.
    ///
    /// # Safety
    /// x has these elements; `to` has space for them, and no other thread accesses it.
    unsafe fn gather(&self, first: usize, stride: usize, rows: usize, to: *mut T) -> *const T {
        for row in 0..rows {
            // SAFETY: the caller's promise.
            unsafe {
                let from = self.x.add(first + row * stride);
                std::ptr::copy_nonoverlapping(from, to.add(row * self.k), self.k);
            }
        }
        to
    }

    /// Returns the linear of one head, for `rows` rows at `x`, whose outputs start at element
    /// `first_output`.
    fn of_head(&self, head: usize, rows: usize, x: *const T, first_output: usize) -> Call<T> {
        let Call { n, stride, k, weight, activations, bias, epilogue, .. } = *self;
        let (weight, epilogue) = (weight.matrix(head, n, k), epilogue.skip(first_output));
        Call { rows, n, stride, k, x, weight, activations, bias, epilogue }
    }
}

/// Returns the columns of a piece, whose bounds are multiples of [`MIN_COLUMNS`].
fn columns(n: usize, piece: usize, pieces: usize) -> Range<usize> {
    let units = n.div_ceil(MIN_COLUMNS);
    let start = |piece: usize| n.min(piece * units / pieces * MIN_COLUMNS);
    start(piece)..start(piece + 1)
}
