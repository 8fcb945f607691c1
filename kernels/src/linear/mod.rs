//! Linears: `out = epilogue(x · weightᵀ + bias)` for row-major weights `[n, k]`, exactly as
//! stored in the checkpoint, and for grouped low-bit weights. No weights are repacked.
//!
//! **The order of every sum.** A vector lane is an output. Along k it is one chain of multiply-adds
//! per segment (`BLOCK_UNITS` units, or a group of a grouped weight), and the segments are added in
//! order; `avx512`, `avx512_bf16`, `amx` and `integers` have orders of their own. Batch size,
//! tiles, tasks and threads do not affect the order, so a row's bits depend on that row alone.
//!
//! - `reader`: conversion of weights of a format to vectors of columns: dwords of `LANES` weight
//!   rows are transposed in registers, or stored in that order in the records of a grouped weight.
//! - `pack`: activations as `[unit][row]`, from which single values are broadcast.
//! - `direct`: few rows, weights used directly from registers.
//! - `tiled`: more rows, weights expanded once into L1 for all of them.
//! - `avx512`, `avx512_bf16`, `amx`: paths that replace `direct` and `tiled` for plain bf16 weights
//!   with AVX-512, AVX512-BF16 and AMX, and pack x in their own order.
//! - `integers`: paths that do the same for grouped weights in bf16 linears with AVX512-VNNI.
//! - `bytes`: paths for grouped weights in bf16 linears with activations of 8 bits.
//! - `factors`: what converts integer sums to results.
//! - `prefetch`: prefetching of memory into caches before it is needed.
//! - `path`: the interface of these algorithms; `registry`: the choice among them for a linear;
//!   `rows`, `cuts`, `sizes`: division of rows and columns for it; `tuning`: parameters chosen for
//!   processors.
//! - `call`: a linear with checked operands; `by_columns`, `by_rows`: division of its work among
//!   threads.
//! - `task`: a range of columns and rows; `epilogue`: bias, activation, rounding; `gate`:
//!   activations of two factors.
//! - `compiled`: every task, compiled once for each number format.
//! - `columns`: a range of a linear's columns.
//! - `experts`: linears of a mixture of experts, with the rows of each expert gathered.
//! - `heads`: linears of the heads of latent attention, each with a matrix of its own.
//!
//! A new algorithm consists of a folder with a [`MultiplicationPath`](path::MultiplicationPath) and
//! a line in `registry`.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod by_columns;
mod by_rows;
mod bytes;
mod call;
mod columns;
mod compiled;
mod cuts;
mod direct;
mod epilogue;
mod experts;
mod factors;
mod gate;
mod heads;
#[cfg(target_arch = "x86_64")]
mod integers;
mod pack;
mod path;
mod prefetch;
mod reader;
mod registry;
mod rows;
mod sizes;
mod task;
mod tiled;
mod tuning;

use crate::Kernels;
use call::{Call, Weight, check_format};
pub use columns::{ColumnsOut, ColumnsWeight, LinearColumns};
pub use compiled::LinearTasks;
use epilogue::Epilogue;
pub use epilogue::LinearOut;
pub(crate) use experts::Workspace as ExpertWorkspace;
pub use experts::{ExpertLimits, ExpertPlaces, ExpertWeight, RoutedLinear, SharedExperts};
pub(crate) use heads::Workspace as HeadWorkspace;
pub use heads::{HeadLinear, HeadSpan};
use model::quantized_format::Grouped;
pub(crate) use sizes::packed_len;
use sizes::results_len;

/// A linear operation.
#[derive(Debug)]
pub struct Linear<'a, T> {
    pub rows: usize,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// `[rows, k]`.
    pub x: &'a [T],
    /// `[n, k]`; fastest on a 64-byte boundary.
    pub weight: &'a [T],
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    pub out: LinearOut<'a, T>,
}

/// A linear operation on a grouped weight: `scale * q + min`, with a scale and a minimum for each
/// output column and group of inputs.
#[derive(Debug)]
pub struct LinearQuant<'a, T> {
    pub rows: usize,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// `[rows, k]`.
    pub x: &'a [T],
    pub format: Grouped,
    /// `format.size_bytes(n, k)` bytes of records; fastest on a 64-byte boundary.
    pub records: &'a [u8],
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    pub out: LinearOut<'a, T>,
}

/// Numbers of rows, outputs and inputs of a linear.
#[derive(Clone, Copy)]
struct LinearShape {
    rows: usize,
    /// Output width.
    n: usize,
    /// Input width.
    k: usize,
}

/// Returns the number of floats of scratch per thread.
pub(crate) fn thread_len() -> usize {
    tiled::TILE_LEN + results_len() + registry::unfinished_len()
}

impl Kernels {
    /// Runs a linear. Each row's result depends on that row alone, bit for bit.
    pub fn linear<T: LinearTasks>(&self, linear: Linear<'_, T>) {
        let Linear { rows, n, k, x, weight, bias, out } = linear;
        assert_eq!(weight.len(), n * k, "weight is [n, k]");
        let shape = LinearShape { rows, n, k };
        self.linear_call(shape, x, Weight::Plain(weight.as_ptr()), bias, out);
    }

    /// Runs a linear on a grouped weight. Each row's result depends on that row alone, bit for bit.
    ///
    /// For every group in order, `part` is the chain of fused multiply-adds of `q` and `x` from 0;
    /// then `total = scale * part + total` and `total = min * sum(x) + total`, both fused.
    ///
    /// In bf16 values of x are rounded ([`ActivationFormat`](model::quantized_format)), and `part`
    /// and `sum(x)` are exact except for one or two roundings each. With 8 bits they are multiples
    /// of a 127th of the largest of at most 32 values, which are a group of their own; with 12 bits
    /// and AVX512-VNNI multiples of 2^-11 of the power of two above the group's largest value.
    ///
    /// Weights of any format and the same weights widened to 8 bits yield the same bits.
    pub fn linear_grouped<T: LinearTasks>(&self, linear: LinearQuant<'_, T>) {
        let LinearQuant { rows, n, k, x, format, records, bias, out } = linear;
        check_format(format);
        assert_eq!(records.len(), format.size_bytes(n, k), "records hold [n, k]");
        let shape = LinearShape { rows, n, k };
        self.linear_call(shape, x, Weight::Grouped(format, records.as_ptr()), bias, out);
    }

    fn linear_call<T: LinearTasks>(
        &self,
        shape: LinearShape,
        x: &[T],
        weight: Weight<T>,
        bias: Option<&[f32]>,
        out: LinearOut<'_, T>,
    ) {
        let epilogue = Epilogue::new(out, shape.rows * shape.n);
        self.run_call(shape, x, weight, bias, epilogue, shape.n);
    }

    /// Runs a linear whose outputs start at those of `epilogue`, with rows `stride` apart.
    fn run_call<T: LinearTasks>(
        &self,
        shape: LinearShape,
        x: &[T],
        weight: Weight<T>,
        bias: Option<&[f32]>,
        epilogue: Epilogue<T>,
        stride: usize,
    ) {
        let LinearShape { rows, n, k } = shape;
        assert!(k >= 1, "a linear has inputs");
        assert!(k <= self.limits.linear_inputs, "k {k} is beyond the scratch limits");
        assert_eq!(x.len(), rows * k, "x is [rows, k]");
        assert!(bias.is_none_or(|bias| bias.len() == n), "bias is [n]");
        let (x, bias) = (x.as_ptr(), bias.map(<[f32]>::as_ptr));
        let activations = self.activations;
        let call = Call { rows, n, stride, k, x, weight, activations, bias, epilogue };
        match self.shares(&call) {
            Some(shares) => self.linear_by_rows(&call, shares),
            None => self.linear_by_columns(&call),
        }
    }
}
