//! Which linears a device multiplies as plain matrices with a library, where it has one.

use model::compressed::WeightFormat;
use model::config::Dtype;
use model::ops::Op;

use crate::ir::Rows;
use crate::plan::RunShape;

/// Whether an operation of a program of such rows multiplies its matrix, in the form that the
/// device reads, as a plain one: a grouped matrix is made plain before. It goes by the program and
/// not by how many rows there are, so that a row's bits depend on that row alone.
///
/// Programs of single rows are bound by reading weights, and the head has a row a sequence. Rows of
/// experts are not one behind the other. The steps of a run that serves are mostly newest tokens,
/// for which making a matrix plain would take longer than multiplying it. f32 runs are for exact
/// comparison.
pub fn multiplies_plain(shape: &RunShape, rows: Rows, op: Op, on_device: WeightFormat) -> bool {
    let is_grouped = on_device != WeightFormat::Plain;
    shape.dtype == Dtype::Bf16
        && rows != Rows::Single
        && op != Op::Head
        && !op.is_expert()
        && !(is_grouped && shape.serves)
}
