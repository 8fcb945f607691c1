//! Selects the linears that a device multiplies as plain matrices with a library, if it has one.

use model::config::Dtype;
use model::ops::Op;
use model::quantized_format::WeightFormat;

use crate::ir::Rows;
use crate::plan::RunShape;

/// Returns true if an operation, in a program with rows of this kind, multiplies its matrix as a
/// plain one, in the format that the device reads; a quantised matrix is expanded first. The
/// decision depends on the program and not on the number of rows, so that a row's bits depend on
/// that row alone.
///
/// Programs of single rows are bound by reading weights, and the head has one row per sequence.
/// Rows of experts are not contiguous. Steps of a serving run consist mostly of newest tokens, for
/// which expanding a matrix would take longer than multiplying it. f32 runs serve exact comparison.
pub fn multiplies_plain(shape: &RunShape, rows: Rows, op: Op, on_device: WeightFormat) -> bool {
    let is_grouped = on_device != WeightFormat::Plain;
    shape.dtype == Dtype::Bf16
        && rows != Rows::Single
        && op != Op::Head
        && !op.is_expert()
        && !(is_grouped && shape.serves)
}
