//! Matrices of 4-bit floats (E2M1) with an 8-bit float (E4M3) for every 16 inputs and a factor of
//! the whole matrix (NVFP4): a value is the float times the product of its factors, which is
//! rounded to f32. Bytes have two values, the first in the low half.

use safetensors::tensor::Dtype as Stored;

use super::files::{ByteRange, Checkpoint};
use super::mxfp4::{BYTES, VALUES};
use crate::quantization::MatrixFactor;
use crate::source::SourceError;
use crate::source::float8::e4m3;

/// Number of inputs that share a factor, and the number of bytes that contain them.
const GROUP: usize = 16;
const GROUP_BYTES: usize = GROUP / 2;
/// Number of bytes of a block: a factor of the matrix, that of the group, and the group's values.
const BLOCK_BYTES: usize = 4 + 1 + GROUP_BYTES;

/// A matrix that is stored in three tensors.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    /// Bytes, `[outputs, inputs / 2]`.
    packed: &'a ByteRange,
    /// Factors of groups, `[outputs, inputs / 16]`.
    scales: &'a ByteRange,
    global: f32,
    factor: MatrixFactor,
}

impl<'a> Matrix<'a> {
    /// Creates the matrix of module `stem`.
    ///
    /// # Errors
    /// Tensors that are missing, inconsistent, or of types that are not supported; a file that ends
    /// early.
    pub(super) fn new(
        files: &'a Checkpoint,
        stem: &str,
        factor: MatrixFactor,
    ) -> Result<Matrix<'a>, SourceError> {
        let (name, global) = match factor {
            MatrixFactor::Divisor => ("weight_packed", "weight_global_scale"),
            MatrixFactor::Multiplier => ("weight", "weight_scale_2"),
        };
        let of_module = |part: &str| format!("{stem}.{part}");
        let packed = files.require(&of_module(name))?;
        let scales = files.require(&of_module("weight_scale"))?;
        let expected = match *packed.shape.as_slice() {
            [outputs, bytes] if bytes.is_multiple_of(GROUP_BYTES) => {
                vec![outputs, bytes / GROUP_BYTES]
            }
            _ => vec![0, 0],
        };
        let tensor = of_module("weight_scale");
        files.require_type(packed, &of_module(name), &[Stored::U8], BYTES)?;
        files.require_type(scales, &tensor, &[Stored::F8_E4M3], "supported: F8_E4M3")?;
        if scales.shape != expected || packed.elements() == 0 {
            return Err(files.shape_error(scales, &tensor, expected));
        }
        let global = single(files, &of_module(global))?;
        Ok(Matrix { packed, scales, global, factor })
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        (self.packed.shape[0], self.packed.shape[1] * 2)
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
        let (scales, bytes) = self.groups(files, first_row, out.len() / GROUP)?;
        let groups = scales.iter().zip(bytes.chunks_exact(GROUP_BYTES));
        for ((scale, bytes), out) in groups.zip(out.chunks_exact_mut(GROUP)) {
            let scale = match self.factor {
                MatrixFactor::Divisor => e4m3(*scale) / self.global,
                MatrixFactor::Multiplier => e4m3(*scale) * self.global,
            };
            for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
                let value = |q: u8| VALUES[usize::from(q)] * scale;
                (pair[0], pair[1]) = (value(byte & 15), value(byte >> 4));
            }
        }
        Ok(())
    }

    /// Reads rows, starting at `first_row`, as blocks of [`StoredType::Nvfp4`]. Where the file has
    /// a divisor, values of blocks differ from those that [`Matrix::read`] returns by the rounding
    /// of its reciprocal, at most two units in the last place.
    ///
    /// [`StoredType::Nvfp4`]: crate::source::StoredType::Nvfp4
    ///
    /// # Errors
    /// A file that ends early.
    pub(super) fn read_blocks(
        &self,
        files: &Checkpoint,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let (scales, bytes) = self.groups(files, first_row, out.len() / BLOCK_BYTES)?;
        let factor = match self.factor {
            MatrixFactor::Divisor => 1.0 / self.global,
            MatrixFactor::Multiplier => self.global,
        };
        // Values of the table are doubled.
        let factor = (factor / 2.0).to_le_bytes();
        let groups = scales.iter().zip(bytes.chunks_exact(GROUP_BYTES));
        for ((scale, bytes), block) in groups.zip(out.chunks_exact_mut(BLOCK_BYTES)) {
            block[..4].copy_from_slice(&factor);
            block[4] = *scale;
            block[5..].copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Reads the factors and bytes of `count` groups.
    fn groups(
        &self,
        files: &Checkpoint,
        first_row: usize,
        count: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), SourceError> {
        let first = first_row * (self.packed.shape[1] / GROUP_BYTES);
        files.read_groups([self.scales, self.packed], GROUP_BYTES, first, count)
    }
}

/// Reads a tensor of one f32.
fn single(files: &Checkpoint, tensor: &str) -> Result<f32, SourceError> {
    let stretch = files.require(tensor)?;
    if stretch.elements() != 1 {
        return Err(files.shape_error(stretch, tensor, vec![1]));
    }
    files.require_type(stretch, tensor, &[Stored::F32], "supported: F32")?;
    let mut bytes = [0u8; 4];
    files.read(stretch, 0, &mut bytes)?;
    Ok(f32::from_le_bytes(bytes))
}
