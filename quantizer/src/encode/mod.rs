//! Encoders: rows of f32 to the blocks of a type, with the factors of the smallest weighted error.

mod fit;
mod k_quants;
mod levels;
mod simple;
mod super_block;

use half::{bf16, f16};
use model::source::StoredType;

use fit::Group;

/// Largest number of values in a block.
const MAX_BLOCK: usize = 256;
/// Smallest weight of a column, relative to the mean: the factors of a block whose columns have no
/// importance would otherwise be arbitrary.
const MIN_IMPORTANCE: f32 = 1e-3;

/// Types that values can be encoded in.
pub const ENCODED: [StoredType; 15] = [
    StoredType::F32,
    StoredType::F16,
    StoredType::Bf16,
    StoredType::Q8_0,
    StoredType::Q4_0,
    StoredType::Q4_1,
    StoredType::Q5_0,
    StoredType::Q5_1,
    StoredType::Q2K,
    StoredType::Q3K,
    StoredType::Q4K,
    StoredType::Q5K,
    StoredType::Q6K,
    StoredType::Iq4Nl,
    StoredType::Iq4Xs,
];

/// Importance of the columns of a matrix: the sum of the squares of the inputs that multiply them,
/// relative to the mean.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnWeights(Vec<f32>);

impl ColumnWeights {
    /// Returns the weights of columns with the given sums of squares; `None` if these are no
    /// measure: not finite, or all zero.
    pub fn from_sums(sums: &[f64]) -> Option<ColumnWeights> {
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        if !mean.is_finite() || mean <= 0.0 {
            return None;
        }
        let weight = |sum: &f64| ((sum / mean) as f32).max(MIN_IMPORTANCE);
        Some(ColumnWeights(sums.iter().map(weight).collect()))
    }

    /// Returns the number of columns.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no columns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Encodes rows of `columns` values each. Without importance, Q4_0 and Q8_0 are encoded by GGML's
/// own rules.
///
/// # Panics
/// If the type is not one of [`ENCODED`], blocks do not divide a row, or a length does not match.
pub fn encode_rows(
    stored: StoredType,
    columns: usize,
    values: &[f32],
    importance: Option<&ColumnWeights>,
    out: &mut [u8],
) {
    let rows = values.len() / columns;
    let row_bytes = stored.row_bytes(columns);
    assert_eq!((values.len(), out.len()), (rows * columns, rows * row_bytes), "whole rows");
    match stored {
        StoredType::F32 => return each(values, out, f32::to_le_bytes),
        StoredType::F16 => return each(values, out, |value| f16::from_f32(value).to_le_bytes()),
        StoredType::Bf16 => return each(values, out, |value| bf16::from_f32(value).to_le_bytes()),
        _ => {}
    }
    let encode: fn(Group<'_>, &mut [u8]) = match (stored, importance) {
        (StoredType::Q8_0, _) => simple::q8_0,
        (StoredType::Q4_0, None) => simple::q4_0_plain,
        (StoredType::Q4_0, _) => simple::q4_0,
        (StoredType::Q4_1, _) => simple::q4_1,
        (StoredType::Q5_0, _) => simple::q5_0,
        (StoredType::Q5_1, _) => simple::q5_1,
        (StoredType::Q2K, _) => k_quants::q2_k,
        (StoredType::Q3K, _) => k_quants::q3_k,
        (StoredType::Q4K, _) => k_quants::q4_k,
        (StoredType::Q5K, _) => k_quants::q5_k,
        (StoredType::Q6K, _) => k_quants::q6_k,
        (StoredType::Iq4Nl, _) => simple::iq4_nl,
        (StoredType::Iq4Xs, _) => k_quants::iq4_xs,
        _ => panic!("{} is not encoded", stored.name()),
    };
    let (block_elements, block_bytes) = stored.block();
    assert_eq!(columns % block_elements, 0, "blocks of {} divide a row", stored.name());
    let mut weights = [1.0; MAX_BLOCK];
    let weights = &mut weights[..block_elements];
    let blocks = values.chunks_exact(block_elements).zip(out.chunks_exact_mut(block_bytes));
    for (index, (values, out)) in blocks.enumerate() {
        set_weights(values, importance, index * block_elements % columns, weights);
        encode(Group { values, weights }, out);
    }
}

/// Sets the weights of the values of a block that starts at column `first`: the importance of the
/// column, times a factor for the magnitude of the value. Large values matter more than their
/// squared errors say, since a model's large activations come from them.
fn set_weights(
    values: &[f32],
    importance: Option<&ColumnWeights>,
    first: usize,
    weights: &mut [f32],
) {
    match importance {
        Some(ColumnWeights(columns)) => {
            weights.copy_from_slice(&columns[first..first + values.len()]);
        }
        None => weights.fill(1.0),
    }
    let squares: f32 = values.iter().map(|value| value * value).sum();
    let mean_square = squares / values.len() as f32;
    // Magnitudes so small or large that f16 factors cannot represent them either.
    if !mean_square.is_normal() {
        return;
    }
    let inverse = 1.0 / mean_square;
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight *= (1.0 + value * value * inverse).sqrt();
    }
}

/// Writes each value as `N` bytes.
fn each<const N: usize>(values: &[f32], out: &mut [u8], convert: impl Fn(f32) -> [u8; N]) {
    for (value, out) in values.iter().zip(out.chunks_exact_mut(N)) {
        out.copy_from_slice(&convert(*value));
    }
}
