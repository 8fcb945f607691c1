//! Matrices of 8-bit floats (E4M3) with separate factors: a value is the product of a float and the
//! factor of its block of rows and inputs, or that of the whole matrix, in f32. Several matrices
//! may be stacked in one tensor, with factors of their own or one for all.

use half::{bf16, f16};
use safetensors::tensor::Dtype as Stored;

use super::files::{ByteRange, Checkpoint};
use crate::source::SourceError;
use crate::source::float8::e4m3;

/// A matrix, or several ones whose rows are consecutive, and their factors.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    weight: &'a ByteRange,
    factors: &'a ByteRange,
    /// Number of rows and inputs.
    shape: (usize, usize),
    /// Number of consecutive rows whose blocks do not continue in the next row: those of each
    /// stacked matrix.
    matrix_rows: usize,
    /// Number of rows and inputs that share a factor.
    block: (usize, usize),
}

impl<'a> Matrix<'a> {
    /// Creates the matrix with the given name. `block` is the size of blocks according to the
    /// checkpoint's configuration; larger blocks than the matrix are as large as it.
    ///
    /// # Errors
    /// Tensors that are missing, floats of another type, or factors that have another
    /// shape or are of an unsupported type.
    pub(super) fn new(
        files: &'a Checkpoint,
        name: &str,
        factors: &str,
        block: Option<(usize, usize)>,
    ) -> Result<Matrix<'a>, SourceError> {
        let tensor = factors.to_owned();
        let (weight, factors) = (files.require(name)?, files.require(factors)?);
        files.require_type(weight, name, &[Stored::F8_E4M3], "supported: F8_E4M3")?;
        let (count, rows, inputs) = match *weight.shape.as_slice() {
            [rows, inputs] => (None, rows, inputs),
            [count, rows, inputs] => (Some(count), rows, inputs),
            _ => return Err(files.shape_error(weight, name, vec![0, 0])),
        };
        let of_matrix = match block {
            Some((r, i)) => vec![rows.div_ceil(r), inputs.div_ceil(i)],
            None if count.is_some() => vec![1, 1],
            None => vec![1],
        };
        let expected: Vec<usize> = count.into_iter().chain(of_matrix).collect();
        let all_rows = count.unwrap_or(1) * rows;
        let is_one = block.is_none() && factors.elements() == 1;
        let is_list = block.is_none() && Some(factors.shape.as_slice()) == expected.get(..1);
        if factors.shape != expected && !is_one && !is_list {
            return Err(files.shape_error(factors, &tensor, expected));
        }
        if factor_type(factors.stored).is_none() {
            return Err(SourceError::Type {
                path: files.path(factors).display().to_string(),
                tensor,
                found: format!("{:?}", factors.stored),
                supported: "supported: F32, BF16, F16, F8_E8M0, U8",
            });
        }
        let matrix_rows = if is_one { all_rows } else { rows };
        let (block_rows, block_inputs) = block.unwrap_or((matrix_rows, inputs));
        let block = (block_rows.max(1), block_inputs.max(1));
        let (shape, matrix_rows) = ((all_rows, inputs), matrix_rows.max(1));
        Ok(Matrix { weight, factors, shape, matrix_rows, block })
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        self.shape
    }

    /// Returns the index of the row of blocks that contains a row.
    fn block_row(&self, row: usize) -> usize {
        let (matrix, row) = (row / self.matrix_rows, row % self.matrix_rows);
        matrix * self.matrix_rows.div_ceil(self.block.0) + row / self.block.0
    }

    /// Reads rows, starting at `first_row`.
    ///
    /// # Errors
    /// A file that ends early.
    pub(super) fn read(
        &self,
        files: &Checkpoint,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        let (_, inputs) = self.shape();
        let mut bytes = vec![0u8; out.len()];
        files.read(self.weight, first_row * inputs, &mut bytes)?;
        let mut factors = Vec::new();
        let mut block_row = usize::MAX;
        let values: Vec<f32> = (0..=u8::MAX).map(e4m3).collect();
        let rows = out.chunks_mut(inputs).zip(bytes.chunks(inputs));
        for (row, (out, bytes)) in rows.enumerate() {
            if self.block_row(first_row + row) != block_row {
                block_row = self.block_row(first_row + row);
                factors = self.block_factors(files, block_row)?;
            }
            let blocks = out.chunks_mut(self.block.1).zip(bytes.chunks(self.block.1));
            for ((out, bytes), factor) in blocks.zip(&factors) {
                for (out, byte) in out.iter_mut().zip(bytes) {
                    *out = values[usize::from(*byte)] * factor;
                }
            }
        }
        Ok(())
    }

    /// Returns the factors of a row of blocks.
    fn block_factors(&self, files: &Checkpoint, row: usize) -> Result<Vec<f32>, SourceError> {
        let count = self.shape().1.div_ceil(self.block.1);
        let size = self.factors.element_bytes();
        let mut bytes = vec![0u8; count * size];
        files.read(self.factors, row * count, &mut bytes)?;
        // `new` refuses every other type.
        let convert = factor_type(self.factors.stored).unwrap_or(|_| f32::NAN);
        Ok(bytes.chunks_exact(size).map(convert).collect())
    }
}

/// Returns the function that converts bytes to a factor. A single byte is an exponent of two.
fn factor_type(stored: Stored) -> Option<fn(&[u8]) -> f32> {
    match stored {
        Stored::F32 => Some(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Stored::BF16 => Some(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        Stored::F16 => Some(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()),
        Stored::F8_E8M0 | Stored::U8 => Some(|b| 2f64.powi(i32::from(b[0]) - 127) as f32),
        _ => None,
    }
}
