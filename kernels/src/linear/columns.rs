//! A range of a linear's columns, computed from the weights and biases of these columns alone.
//! Other columns of the same rows may be written concurrently. The bits of an output are those of
//! the whole linear.

use std::ops::Range;

use super::LinearShape;
use super::call::{Weight, check_format};
use super::compiled::LinearTasks;
use super::epilogue::Epilogue;
use super::gate::Gate;
use crate::Kernels;
use crate::columns::Columns;
use crate::number::Number;
use model::quantized_format::Grouped;

/// A range of a linear's columns.
#[derive(Debug)]
pub struct LinearColumns<'a, T> {
    pub rows: usize,
    /// Output width of the whole linear.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// Columns to compute.
    pub columns: Range<usize>,
    /// `[rows, k]`.
    pub x: &'a [T],
    pub weight: ColumnsWeight<'a, T>,
    /// Biases of the columns to compute.
    pub bias: Option<&'a [f32]>,
    pub out: ColumnsOut<'a, T>,
}

/// The weights of some columns.
#[derive(Debug, Clone, Copy)]
pub enum ColumnsWeight<'a, T> {
    /// `[columns, k]`.
    Plain(&'a [T]),
    /// Records that hold `[columns, k]`.
    Grouped(Grouped, &'a [u8]),
}

/// Destination of the results. All operands are `[rows, n]`, of which only the columns are
/// accessed.
#[derive(Debug)]
pub enum ColumnsOut<'a, T> {
    Store(Columns<'a, T>),
    /// `max(result, 0)`.
    Relu(Columns<'a, T>),
    /// `max(result, 0)²`.
    ReluSquared(Columns<'a, T>),
    /// GELU of the result, computed with erf.
    Gelu(Columns<'a, T>),
    /// `silu(gate) * result`.
    SiluMul {
        gate: Columns<'a, T>,
        out: Columns<'a, T>,
    },
    /// `gelu(gate) * result`, with the tanh approximation of GELU.
    GeluTanhMul {
        gate: Columns<'a, T>,
        out: Columns<'a, T>,
    },
    /// `min(silu(gate), limit) * u`, where u is the result, clamped to `-limit..=limit`.
    LimitedSiluMul {
        gate: Columns<'a, T>,
        out: Columns<'a, T>,
        limit: f32,
    },
    /// `silu(g) * u`, where g is the gate, at most `limit`, and u the result, clamped to
    /// `-limit..=limit`.
    SiluOfLimitedMul {
        gate: Columns<'a, T>,
        out: Columns<'a, T>,
        limit: f32,
    },
    /// `out += factor * result`: the residual stream, in place.
    Add {
        out: Columns<'a, f32>,
        factor: f32,
    },
}

impl<T: Number> ColumnsOut<'_, T> {
    /// Returns the outputs from element `first` on, after checking that every operand has `len`
    /// elements.
    fn epilogue(self, first: usize, len: usize) -> Epilogue<T> {
        let gated = |gate: Columns<'_, T>, out: Columns<'_, T>, with| {
            assert_eq!(gate.len(), len, "gate is [rows, n]");
            let gate = gate.first().cast_const();
            (out.len(), Epilogue::Gated { gate, out: out.first(), with })
        };
        let (written, epilogue) = match self {
            ColumnsOut::Store(out) => (out.len(), Epilogue::Store(out.first())),
            ColumnsOut::Relu(out) => (out.len(), Epilogue::Relu(out.first())),
            ColumnsOut::ReluSquared(out) => (out.len(), Epilogue::ReluSquared(out.first())),
            ColumnsOut::Gelu(out) => (out.len(), Epilogue::Gelu(out.first())),
            ColumnsOut::SiluMul { gate, out } => gated(gate, out, Gate::Silu),
            ColumnsOut::GeluTanhMul { gate, out } => gated(gate, out, Gate::GeluTanh),
            ColumnsOut::LimitedSiluMul { gate, out, limit } => {
                gated(gate, out, Gate::LimitedSilu { limit })
            }
            ColumnsOut::SiluOfLimitedMul { gate, out, limit } => {
                gated(gate, out, Gate::SiluOfLimited { limit })
            }
            ColumnsOut::Add { out, factor } => {
                (out.len(), Epilogue::Add { out: out.first(), factor })
            }
        };
        assert_eq!(written, len, "out is [rows, n]");
        epilogue.skip(first)
    }
}

impl Kernels {
    /// Computes the columns. Each result depends on its row and column alone, bit for bit.
    pub fn linear_columns<T: LinearTasks>(&self, part: LinearColumns<'_, T>) {
        let LinearColumns { rows, n, k, columns, x, weight, bias, out } = part;
        assert!(columns.start <= columns.end && columns.end <= n, "columns are among n");
        let weight = match weight {
            ColumnsWeight::Plain(weight) => {
                assert_eq!(weight.len(), columns.len() * k, "weight is [columns, k]");
                Weight::Plain(weight.as_ptr())
            }
            ColumnsWeight::Grouped(format, records) => {
                check_format(format);
                let size_bytes = format.size_bytes(columns.len(), k);
                assert_eq!(records.len(), size_bytes, "records hold [columns, k]");
                Weight::Grouped(format, records.as_ptr())
            }
        };
        let epilogue = out.epilogue(columns.start, rows * n);
        let shape = LinearShape { rows, n: columns.len(), k };
        self.run_call(shape, x, weight, bias, epilogue, n);
    }
}
