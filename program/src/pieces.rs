//! Dense linears in equal pieces of their output rows. A piece has its rows of the matrix and of
//! the bias, and writes its columns of the linear's value; the bits of an output do not depend on
//! the pieces.

use std::ops::Range;

use model::config::{Dtype, ModelConfig};
use model::ops::{Op, Value};
use model::quantized_format::WeightFormat;

use crate::chunk::Chunk;

/// Rows of a piece are a multiple of this number: the blocks of quantised formats, whose bytes are
/// then contiguous.
const STEP_ROWS: usize = 16;

/// Returns true if an operation is a linear that can be split into `of` pieces. K and V are whole,
/// as caches take them; so are linears followed by a norm of heads or a rotation in the same pass.
pub fn divides(config: &ModelConfig, op: Op, of: u16) -> bool {
    let is_plain_query = || {
        let mut kinds = config.layers.kinds().iter();
        config.qk_norm.is_none() && kinds.all(|kind| kind.rope.is_none())
    };
    let is_dense = match op {
        Op::Out | Op::Gate | Op::Up | Op::Down | Op::Fc0 | Op::Fc1 => true,
        Op::DenseGate | Op::DenseUp | Op::DenseDown => true,
        Op::Q => is_plain_query(),
        _ => false,
    };
    let rows = op.weights(config).and_then(|shape| shape.matrix).map_or(0, |(rows, _)| rows);
    is_dense && of > 0 && rows > 0 && rows.is_multiple_of(usize::from(of) * STEP_ROWS)
}

/// Returns the input of which a piece reads only the columns that it writes: the gate, or the
/// residual stream.
pub fn own_input(config: &ModelConfig, op: Op) -> Option<Value> {
    op.reads(config).get(1).copied()
}

/// Returns the columns of a piece in the linear's value, which are the rows of its matrix.
///
/// # Panics
/// For an operation without a matrix.
pub fn columns(config: &ModelConfig, op: Op, piece: Chunk) -> Range<usize> {
    let shape = op.weights(config).and_then(|shape| shape.matrix);
    let Some((rows, _)) = shape else { panic!("{op:?} has no matrix") };
    let each = rows / usize::from(piece.of);
    let first = usize::from(piece.index) * each;
    first..first + each
}

/// Returns the byte ranges of a piece's rows of the matrix, in `format`, and of the bias in the
/// linear's blob; the second is empty if there is no bias.
///
/// # Panics
/// For an operation without a matrix.
pub fn weight_ranges(
    config: &ModelConfig,
    dtype: Dtype,
    format: WeightFormat,
    op: Op,
    piece: Chunk,
) -> [Range<usize>; 2] {
    let rows = columns(config, op, piece);
    let Some(shape) = op.weights(config) else { panic!("{op:?} has no weights") };
    let inputs = shape.matrix.map_or(0, |(_, inputs)| inputs);
    let before = |row: usize| match format {
        WeightFormat::Plain => row * inputs * dtype.size_bytes(),
        WeightFormat::Grouped(form) => form.size_bytes(row, inputs),
    };
    let bias = shape.layout(dtype, format).vector_offsets[0];
    let float = |row: usize| bias + row * size_of::<f32>();
    let biases = match shape.vectors[0] {
        Some(_) => float(rows.start)..float(rows.end),
        None => bias..bias,
    };
    [before(rows.start)..before(rows.end), biases]
}

#[cfg(test)]
mod tests {
    use model::known::find_known;
    use model::quantized_format::Grouped;

    use super::*;

    #[test]
    fn pieces_are_all_of_a_blob() {
        let config = find_known("opt-125m").expect("known").config;
        for format in [WeightFormat::Plain, WeightFormat::Grouped(Grouped::W4)] {
            for op in [Op::Q, Op::Out, Op::Fc0, Op::Fc1] {
                assert!(divides(&config, op, 8), "{op:?}");
                let layout = op.weights(&config).expect("weights").layout(Dtype::Bf16, format);
                let (mut matrix, mut bias) = (0, layout.vector_offsets[0]);
                for index in 0..8 {
                    let piece = Chunk { index, of: 8 };
                    let [rows, biases] = weight_ranges(&config, Dtype::Bf16, format, op, piece);
                    assert_eq!((rows.start, biases.start), (matrix, bias), "{op:?} {piece:?}");
                    assert!(rows.start % 64 == 0 && biases.start % 64 == 0, "{op:?} {piece:?}");
                    (matrix, bias) = (rows.end, biases.end);
                }
                assert_eq!(matrix, layout.matrix_bytes);
                assert!(bias <= layout.size_bytes && bias > layout.size_bytes - 64);
            }
        }
    }

    #[test]
    fn some_linears_stay_whole() {
        let llama = find_known("llama-3.2-1b").expect("known").config;
        let divided = |op| divides(&llama, op, 8);
        assert!([Op::Out, Op::Gate, Op::Up, Op::Down].into_iter().all(divided));
        // Queries are rotated; attention and norms are not linears; caches take K and V.
        assert!(![Op::Q, Op::K, Op::V, Op::Scores, Op::Norm0].into_iter().any(divided));
        assert!(!divides(&llama, Op::Out, 3) && !divides(&llama, Op::Out, 0));
    }
}
