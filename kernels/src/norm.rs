//! RMS norm and layer norm over rows of the f32 residual stream, and RMS norm of rows in place,
//! such as each head of q and k, and of rows that are added to the residual stream.

use crate::Kernels;
use crate::linear::HeadSpan;
use crate::norm_row::{Norm, NormRow, NormTasks, RmsOut, RmsRows};
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Rows of one task.
const TASK_ROWS: usize = 4;
/// Number of elements above which a task takes no further row; heads are narrow.
const TASK_ELEMENTS: usize = 4096;

/// Number of elements that a task rounds or multiplies.
const ROUND_ELEMENTS: usize = 16384;

impl Kernels {
    /// Computes `out[i] = x[r] / sqrt(mean(x[r]²) + eps) * gain`, where `r` is `row_index[i]`, or
    /// `i` without an index.
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

    /// Computes `out[i] = (x[r] - mean) / sqrt(variance + eps) * gain + bias`; shapes are those of
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

    /// Rounds `x` to the type of `out`, which has as many elements.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn round<T: Number>(&self, x: &[f32], out: &mut [T]) {
        assert_eq!(x.len(), out.len(), "as many elements");
        let all = SharedPointer(out.as_mut_ptr());
        self.run_sized(x.len().div_ceil(ROUND_ELEMENTS), size_of_val(x), &|task, _| {
            let first = task * ROUND_ELEMENTS;
            let x = &x[first..x.len().min(first + ROUND_ELEMENTS)];
            // SAFETY: these elements are within `out`, and no other task writes them.
            let out = unsafe { std::slice::from_raw_parts_mut(all.pointer().add(first), x.len()) };
            out.iter_mut().zip(x).for_each(|(out, x)| *out = T::from_f32(*x));
        });
    }

    /// Multiplies all elements by `factor`.
    pub fn scale(&self, factor: f32, x: &mut [f32]) {
        let (len, bytes) = (x.len(), size_of_val(x));
        let all = SharedPointer(x.as_mut_ptr());
        self.run_sized(len.div_ceil(ROUND_ELEMENTS), bytes, &|task, _| {
            let first = task * ROUND_ELEMENTS;
            let count = ROUND_ELEMENTS.min(len - first);
            // SAFETY: these elements are within `x`, and no other task accesses them.
            let x = unsafe { std::slice::from_raw_parts_mut(all.pointer().add(first), count) };
            x.iter_mut().for_each(|x| *x *= factor);
        });
    }

    /// Computes `x[r] = x[r] / sqrt(mean(x[r]²) + eps) * gain` in place, with f32 intermediate
    /// values.
    ///
    /// `x` is `[rows, heads, head_dim]` and `gain` `[head_dim]`: each head separately. A single
    /// head with the width of a row normalises whole rows.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn head_norm<T: NormTasks>(
        &self,
        rows: usize,
        heads: usize,
        gain: &[f32],
        eps: f32,
        x: &mut [T],
    ) {
        let rows = rows * heads;
        assert_eq!(x.len(), rows * gain.len(), "x is [rows, heads, head_dim]");
        let (x, bytes) = (SharedPointer(x.as_mut_ptr()), 2 * size_of_val(x));
        self.rms(rows, gain, eps, bytes, &|first| {
            // SAFETY: the row is within x, and no other task accesses those of this one.
            RmsOut::InPlace(unsafe { x.pointer().add(first * gain.len()) })
        });
    }

    /// Computes `x[r, g] = x[r, g] / sqrt(mean(x[r, g]²) + eps) * gain[g]` in place, with f32
    /// intermediate values.
    ///
    /// `x` is `[rows, groups, width]` and `gain` `[groups, width]`.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn group_norm<T: NormTasks>(
        &self,
        rows: usize,
        groups: usize,
        gain: &[f32],
        eps: f32,
        x: &mut [T],
    ) {
        assert!(groups > 0 && gain.len().is_multiple_of(groups), "gain is [groups, width]");
        assert_eq!(x.len(), rows * gain.len(), "x is [rows, groups, width]");
        let width = gain.len() / groups;
        assert!(width > 0, "a group has elements");
        let variant = self.variant;
        let (x, bytes) = (SharedPointer(x.as_mut_ptr()), 2 * size_of_val(x));
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                for (group, gain) in gain.chunks_exact(width).enumerate() {
                    // SAFETY: the variant was checked when the kernels were built; the group is
                    // within x, and no other task accesses it.
                    unsafe {
                        let out = RmsOut::InPlace(x.pointer().add((row * groups + group) * width));
                        T::rms_rows(variant, RmsRows { rows: 1, gain, eps, out });
                    }
                }
            }
        });
    }

    /// Computes [`Kernels::head_norm`] of a part of each row, of as many elements as `gain` has.
    /// `x` is `[rows, span.width]`, whose other elements are unchanged.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn span_norm<T: NormTasks>(
        &self,
        rows: usize,
        span: HeadSpan,
        gain: &[f32],
        eps: f32,
        x: &mut [T],
    ) {
        let HeadSpan { width, first } = span;
        assert_eq!(x.len(), rows * width, "x is [rows, width]");
        assert!(!gain.is_empty() && first + gain.len() <= width, "a row contains the part");
        let variant = self.variant;
        let (x, bytes) = (SharedPointer(x.as_mut_ptr()), 2 * size_of_val(x));
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                // SAFETY: the variant was checked when the kernels were built; the elements are
                // within x, and no other task accesses them.
                unsafe {
                    let out = RmsOut::InPlace(x.pointer().add(row * width + first));
                    T::rms_rows(variant, RmsRows { rows: 1, gain, eps, out });
                }
            }
        });
    }

    /// Computes `(x - mean) / sqrt(variance + eps) * gain + bias` of a part of each row in place.
    /// Shapes are those of [`Kernels::span_norm`]; parts are small, such as the key of an indexer.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn span_layer_norm<T: Number>(
        &self,
        rows: usize,
        span: HeadSpan,
        [gain, bias]: [&[f32]; 2],
        eps: f32,
        x: &mut [T],
    ) {
        let HeadSpan { width, first } = span;
        assert_eq!(x.len(), rows * width, "x is [rows, width]");
        assert_eq!(gain.len(), bias.len(), "there is a bias for each gain");
        assert!(!gain.is_empty() && first + gain.len() <= width, "a row contains the part");
        let (x, bytes) = (SharedPointer(x.as_mut_ptr()), 2 * rows * size_of_val(gain));
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                // SAFETY: the elements are within x, and no other task accesses them.
                let part = unsafe {
                    let part = x.pointer().add(row * width + first);
                    std::slice::from_raw_parts_mut(part, gain.len())
                };
                let count = part.len() as f32;
                let mean = part.iter().map(|x| x.to_f32()).sum::<f32>() / count;
                let squares = part.iter().map(|x| (x.to_f32() - mean) * (x.to_f32() - mean));
                let factor = 1.0 / (squares.sum::<f32>() / count + eps).sqrt();
                for ((x, gain), bias) in part.iter_mut().zip(gain).zip(bias) {
                    *x = T::from_f32((x.to_f32() - mean) * factor * gain + bias);
                }
            }
        });
    }

    /// Computes `out[r] += x[r] / sqrt(mean(x[r]²) + eps) * gain`: a norm after a block, in f32.
    ///
    /// `x` and `out` are `[rows, hidden]`, `gain` is `[hidden]`.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn add_rms_norm<T: NormTasks>(
        &self,
        rows: usize,
        x: &[T],
        gain: &[f32],
        eps: f32,
        out: &mut [f32],
    ) {
        assert_eq!(x.len(), rows * gain.len(), "x is [rows, hidden]");
        assert_eq!(out.len(), rows * gain.len(), "out is [rows, hidden]");
        let bytes = size_of_val(x) + 2 * size_of_val(out);
        let out = SharedPointer(out.as_mut_ptr());
        self.rms(rows, gain, eps, bytes, &|first| {
            let x = x[first * gain.len()..].as_ptr();
            // SAFETY: the row is within out, and no other task accesses those of this one.
            RmsOut::AddTo { x, out: unsafe { out.pointer().add(first * gain.len()) } }
        });
    }

    /// Runs tasks over `rows` rows as wide as `gain`; `out` returns the destination of those that
    /// start at a row.
    fn rms<T: NormTasks>(
        &self,
        rows: usize,
        gain: &[f32],
        eps: f32,
        bytes: usize,
        out: &(dyn Fn(usize) -> RmsOut<T> + Sync),
    ) {
        assert!(!gain.is_empty(), "a row has elements");
        let variant = self.variant;
        let task_rows = (TASK_ELEMENTS / gain.len()).max(TASK_ROWS);
        self.run_sized(rows.div_ceil(task_rows), bytes, &|task, _| {
            let first = task * task_rows;
            let rows = task_rows.min(rows - first);
            // SAFETY: the variant was checked when the kernels were built; this number of rows,
            // starting at the first, is within x and the output, and no other task accesses those.
            unsafe { T::rms_rows(variant, RmsRows { rows, gain, eps, out: out(first) }) };
        });
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
        let out = SharedPointer(out.as_mut_ptr());
        let variant = self.variant;
        let bytes = rows * hidden * (size_of::<f32>() + size_of::<T>());
        self.run_sized(rows.div_ceil(TASK_ROWS), bytes, &|task, _| {
            for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                let from = row_index.map_or(row, |index| index[row] as usize);
                // SAFETY: the variant was checked when the kernels were built; the row is within
                // `out`, and no other task writes it.
                unsafe {
                    let out = out.pointer().add(row * hidden);
                    T::norm_row(variant, NormRow { norm: &norm, from, out });
                }
            }
        });
    }
}
