//! Residuals of several streams: their mappings, the sum of streams that is the input of a layer's
//! half, and the mixture of streams to which the half's output is added.
//!
//! A row's mappings are finished in plain code, identical in every variant but for the sum of
//! squares of the row.

use half::bf16;
use model::streams::{ResidualStreams, STREAMS_MAX};

use crate::Kernels;
use crate::norm_row::sum_of;
use crate::number::Number;
use crate::scratch::SharedPointer;
use crate::simd::Simd;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::variant::{SimdTask, Variant, dispatch};

/// Scales and bases of mappings: a result of the linear is multiplied by the scale of its mapping,
/// and its base is added.
#[derive(Debug, Clone, Copy)]
pub struct StreamRules<'a> {
    pub streams: ResidualStreams,
    /// Scales of pre, post and comb; that of pre alone for the last mapping.
    pub scales: &'a [f32],
    /// Base of each result.
    pub base: &'a [f32],
    /// Epsilon of the norm of a row.
    pub norm_eps: f32,
}

impl StreamRules<'_> {
    /// # Panics
    /// If scales and bases are not those of these mappings.
    fn check(&self) {
        let count = self.streams.count;
        assert!((1..=STREAMS_MAX).contains(&count), "{count} streams");
        let has_all = self.scales.len() == 3 && self.base.len() == self.streams.map_size();
        let has_pre = self.scales.len() == 1 && self.base.len() == count;
        assert!(has_all || has_pre, "a base of each result, a scale of each mapping");
    }

    /// Turns the results of a row's linear into its mappings. `factor` is that of the row's norm.
    fn finish(&self, factor: f32, map: &mut [f32]) {
        let ResidualStreams { count, iterations, eps } = self.streams;
        let scaled = |value: f32, scale: f32, base: f32| value * factor * scale + base;
        let (pre, rest) = map.split_at_mut(count);
        for (value, base) in pre.iter_mut().zip(self.base) {
            *value = sigmoid(scaled(*value, self.scales[0], *base)) + eps;
        }
        let &[_, of_post, of_comb] = self.scales else { return };
        let (post, comb) = rest.split_at_mut(count);
        for (value, base) in post.iter_mut().zip(&self.base[count..]) {
            *value = 2.0 * sigmoid(scaled(*value, of_post, *base));
        }
        for (value, base) in comb.iter_mut().zip(&self.base[2 * count..]) {
            *value = scaled(*value, of_comb, *base);
        }
        for row in comb.chunks_exact_mut(count) {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|value| *value = (*value - largest).exp());
            let sum: f32 = row.iter().sum();
            row.iter_mut().for_each(|value| *value = *value / sum + eps);
        }
        divide_columns(comb, count, eps);
        for _ in 1..iterations {
            for row in comb.chunks_exact_mut(count) {
                let sum = row.iter().sum::<f32>() + eps;
                row.iter_mut().for_each(|value| *value /= sum);
            }
            divide_columns(comb, count, eps);
        }
    }
}

/// Divides the columns of a square matrix by their sums.
fn divide_columns(comb: &mut [f32], count: usize, eps: f32) {
    for column in 0..count {
        let elements = || (column..comb.len()).step_by(count);
        let sum = elements().map(|at| comb[at]).sum::<f32>() + eps;
        elements().for_each(|at| comb[at] /= sum);
    }
}

fn sigmoid(value: f32) -> f32 {
    1.0 / (1.0 + (-value).exp())
}

impl Kernels {
    /// Turns the results of the linear of each row of streams into its mappings, in place.
    ///
    /// `x` is `[rows, streams, hidden]`, and `map` `[rows, base.len()]`.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn stream_map(&self, rows: usize, rules: &StreamRules<'_>, x: &[f32], map: &mut [f32]) {
        rules.check();
        let size = rules.base.len();
        assert_eq!(map.len(), rows * size, "map is [rows, results]");
        assert!(rows == 0 || x.len().is_multiple_of(rows), "x is [rows, streams, hidden]");
        let width = x.len() / rows.max(1);
        assert!(rows == 0 || width > 0, "a row has elements");
        let (map, variant) = (SharedPointer(map.as_mut_ptr()), self.variant);
        self.run_sized(rows, size_of_val(x), &|row, _| {
            let x = &x[row * width..][..width];
            let mut squares = 0.0;
            // SAFETY: the variant was checked when the kernels were built; this number of results
            // is within `map`, and no other task accesses those of this row.
            let map = unsafe {
                dispatch(variant, Squares { x, sum: &mut squares });
                std::slice::from_raw_parts_mut(map.pointer().add(row * size), size)
            };
            let factor = 1.0 / (squares / width as f32 + rules.norm_eps).sqrt();
            rules.finish(factor, map);
        });
    }

    /// Computes `out[r] = sum over i of map[r][i] * x[r][i]`, the sum of the streams of each row,
    /// weighted by pre.
    ///
    /// `x` is `[rows, streams, hidden]`, `map` `[rows, *]`, of whose rows pre is the start, and
    /// `out` `[rows, hidden]`.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn sum_streams(
        &self,
        rows: usize,
        streams: usize,
        x: &[f32],
        map: &[f32],
        out: &mut [f32],
    ) {
        if rows == 0 {
            return;
        }
        let (hidden, size) = (out.len() / rows, map.len() / rows);
        assert!((1..=STREAMS_MAX).contains(&streams), "{streams} streams");
        assert_eq!(out.len(), rows * hidden, "out is [rows, hidden]");
        assert!(map.len() == rows * size && size >= streams, "map has pre of each row");
        assert_eq!(x.len(), rows * streams * hidden, "x is [rows, streams, hidden]");
        let bytes = size_of_val(x) + size_of_val(out);
        let (out, variant) = (SharedPointer(out.as_mut_ptr()), self.variant);
        self.run_sized(rows, bytes, &|row, _| {
            let x = &x[row * streams * hidden..][..streams * hidden];
            let pre = &map[row * size..][..streams];
            // SAFETY: the variant was checked when the kernels were built; the row is within `out`,
            // and no other task writes it.
            unsafe {
                let out = out.pointer().add(row * hidden);
                dispatch(variant, SumRow { x, pre, hidden, out });
            }
        });
    }

    /// Computes `out[r][k] = post[k] * (y[r] + more[r]) + sum over j of comb[j][k] * out[r][j]` in
    /// place: the streams are mixed, and a half's output is added to each.
    ///
    /// `y` and `more` are `[rows, hidden]`, `map` `[rows, (2 + streams) * streams]`, and `out`
    /// `[rows, streams, hidden]`.
    ///
    /// # Panics
    /// If shapes do not match.
    pub fn add_to_streams<T: StreamTasks>(
        &self,
        rows: usize,
        streams: usize,
        y: &[T],
        more: Option<&[f32]>,
        map: &[f32],
        out: &mut [f32],
    ) {
        if rows == 0 {
            return;
        }
        let (hidden, size) = (y.len() / rows, (2 + streams) * streams);
        assert!((1..=STREAMS_MAX).contains(&streams), "{streams} streams");
        assert_eq!(y.len(), rows * hidden, "y is [rows, hidden]");
        assert!(more.is_none_or(|more| more.len() == y.len()), "more is [rows, hidden]");
        assert_eq!(map.len(), rows * size, "map is [rows, (2 + streams) * streams]");
        assert_eq!(out.len(), rows * streams * hidden, "out is [rows, streams, hidden]");
        let bytes = 2 * size_of_val(out) + 2 * size_of_val(y);
        let (out, variant) = (SharedPointer(out.as_mut_ptr()), self.variant);
        self.run_sized(rows, bytes, &|row, _| {
            let y = &y[row * hidden..][..hidden];
            let more = more.map(|more| &more[row * hidden..][..hidden]);
            let map = &map[row * size + streams..][..size - streams];
            // SAFETY: the variant was checked when the kernels were built; the row is within `out`,
            // and no other task accesses it.
            unsafe {
                let out = out.pointer().add(row * streams * hidden);
                T::add_row(variant, AddRow { y, more, map, streams, out });
            }
        });
    }
}

/// Row of a mixture of streams, compiled in this crate once per number format; see
/// `linear::compiled`.
pub trait StreamTasks: Number {
    /// # Safety
    /// `variant` is available, and the task's own conditions hold.
    unsafe fn add_row(variant: Variant, task: AddRow<'_, Self>);
}

impl StreamTasks for f32 {
    #[inline(never)]
    unsafe fn add_row(variant: Variant, task: AddRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

impl StreamTasks for bf16 {
    #[inline(never)]
    unsafe fn add_row(variant: Variant, task: AddRow<'_, Self>) {
        // SAFETY: the caller's promise is the callee's.
        unsafe { dispatch(variant, task) }
    }
}

/// Sum of the squares of a row.
struct Squares<'a> {
    x: &'a [f32],
    sum: &'a mut f32,
}

impl SimdTask for Squares<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Squares { x, sum } = self;
        // SAFETY: the elements are those of x. Lanes after the end are zeros.
        *sum = unsafe { sum_of(s, x.as_ptr(), x.len(), |value, _| s.mul(value, value)) };
    }
}

/// Weighted sum of the streams of a row.
struct SumRow<'a> {
    /// `[streams, hidden]`.
    x: &'a [f32],
    /// `[streams]`.
    pre: &'a [f32],
    hidden: usize,
    /// `[hidden]`.
    out: *mut f32,
}

impl SimdTask for SumRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let SumRow { x, pre, hidden, out } = self;
        for at in (0..hidden).step_by(S::LANES) {
            let width = S::LANES.min(hidden - at);
            let mut sum = s.zero();
            for (stream, weight) in x.chunks_exact(hidden).zip(pre) {
                // SAFETY: `width` elements remain in the stream from `at` on.
                let value = unsafe { load_up_to(s, stream.as_ptr().add(at), width) };
                sum = s.add(sum, s.mul(value, s.splat(*weight)));
            }
            // SAFETY: as many elements remain in the output.
            unsafe { store_up_to(s, out.add(at), sum, width) };
        }
    }
}

/// Mixture of the streams of a row, and addition of a half's output.
#[derive(Debug)]
pub struct AddRow<'a, T> {
    /// `[hidden]`.
    y: &'a [T],
    /// `[hidden]`.
    more: Option<&'a [f32]>,
    /// Post, and comb `[streams, streams]`.
    map: &'a [f32],
    streams: usize,
    /// `[streams, hidden]`.
    out: *mut f32,
}

impl<T: Number> SimdTask for AddRow<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AddRow { y, more, map, streams, out } = self;
        let (hidden, (post, comb)) = (y.len(), map.split_at(streams));
        let mut values = [s.zero(); STREAMS_MAX];
        for at in (0..hidden).step_by(S::LANES) {
            let width = S::LANES.min(hidden - at);
            // SAFETY: `width` elements remain in y and `more` from `at` on.
            let mut added = unsafe { load_up_to(s, y.as_ptr().add(at), width) };
            if let Some(more) = more {
                // SAFETY: as above.
                added = s.add(added, unsafe { load_up_to(s, more.as_ptr().add(at), width) });
            }
            for (stream, value) in values[..streams].iter_mut().enumerate() {
                // SAFETY: as many elements remain in each stream of the row.
                *value =
                    unsafe { load_up_to(s, out.add(stream * hidden + at).cast_const(), width) };
            }
            for (stream, post) in post.iter().enumerate() {
                let mut sum = s.mul(added, s.splat(*post));
                for (value, row) in values[..streams].iter().zip(comb.chunks_exact(streams)) {
                    sum = s.add(sum, s.mul(*value, s.splat(row[stream])));
                }
                // SAFETY: as above.
                unsafe { store_up_to(s, out.add(stream * hidden + at), sum, width) };
            }
        }
    }
}
