//! Matrices of 4-bit floats (E2M1) with an exponent of two for every 32 inputs, in two tensors:
//! `NAME_blocks` with two values per byte, the first in the low half, and `NAME_scales`. In
//! compressed-tensors they are `NAME.weight_packed` and `NAME.weight_scale`, and of experts of
//! DeepSeek V4 `NAME.weight` and `NAME.scale`.

use safetensors::tensor::Dtype as Stored;

use super::files::{ByteRange, Checkpoint};
use crate::source::SourceError;

/// Number of inputs that share an exponent, and the number of bytes that contain them.
const GROUP: usize = 32;
const GROUP_BYTES: usize = GROUP / 2;
/// Number of bytes of a block of GGUF's type: the exponent, followed by bytes whose low half is an
/// element of the first half of the block, and whose high half is the corresponding element of the
/// second half.
const BLOCK_BYTES: usize = 1 + GROUP_BYTES;

/// Types of a tensor of bytes, as errors list them.
pub(super) const BYTES: &str = "supported: U8";

/// Values of the floats.
pub(super) const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A matrix that is stored in two tensors. All dimensions before the inputs count as rows.
#[derive(Debug)]
pub(super) struct Matrix<'a> {
    blocks: &'a ByteRange,
    exponents: &'a ByteRange,
}

impl<'a> Matrix<'a> {
    /// Finds the matrix `stem`; `None` if there are no blocks of that name.
    ///
    /// # Errors
    /// Inconsistent tensors, or types other than bytes.
    pub(super) fn find(
        files: &'a Checkpoint,
        stem: &str,
    ) -> Result<Option<Matrix<'a>>, SourceError> {
        let name = format!("{stem}_blocks");
        let Some(blocks) = files.get(&name) else {
            return Ok(None);
        };
        let tensor = format!("{stem}_scales");
        let exponents = files.require(&tensor)?;
        files.require_type(blocks, &name, &[Stored::U8], BYTES)?;
        files.require_type(exponents, &tensor, &[Stored::U8], BYTES)?;
        let expected = match blocks.shape.split_last() {
            Some((&GROUP_BYTES, groups)) if groups.len() >= 2 => groups.to_vec(),
            _ => Vec::new(),
        };
        if expected.is_empty() || exponents.shape != expected {
            return Err(files.shape_error(exponents, &tensor, expected));
        }
        Ok(Some(Matrix { blocks, exponents }))
    }

    /// Creates the matrix of module `stem` of compressed-tensors.
    ///
    /// # Errors
    /// Tensors that are missing, inconsistent, or of types other than bytes.
    pub(super) fn of_module(files: &'a Checkpoint, stem: &str) -> Result<Matrix<'a>, SourceError> {
        let name = format!("{stem}.weight_packed");
        files.require_type(files.require(&name)?, &name, &[Stored::U8], BYTES)?;
        Matrix::of_rows(files, &name, &format!("{stem}.weight_scale"))
    }

    /// Creates the matrix of module `stem` with the names of DeepSeek V4.
    ///
    /// # Errors
    /// Tensors that are missing, inconsistent, or of types other than bytes.
    pub(super) fn of_scale(files: &'a Checkpoint, stem: &str) -> Result<Matrix<'a>, SourceError> {
        let name = format!("{stem}.weight");
        let types = &[Stored::I8, Stored::U8];
        files.require_type(files.require(&name)?, &name, types, "supported: I8, U8")?;
        Matrix::of_rows(files, &name, &format!("{stem}.scale"))
    }

    /// Creates the matrix of bytes `name`, whose type was checked, with exponents `tensor`.
    ///
    /// # Errors
    /// Tensors that are missing or inconsistent, or exponents of a type other than bytes.
    fn of_rows(files: &'a Checkpoint, name: &str, tensor: &str) -> Result<Matrix<'a>, SourceError> {
        let (blocks, exponents) = (files.require(name)?, files.require(tensor)?);
        let types = &[Stored::U8, Stored::F8_E8M0];
        files.require_type(exponents, tensor, types, "supported: U8, F8_E8M0")?;
        let expected = match *blocks.shape.as_slice() {
            [rows, bytes] => vec![rows, bytes.div_ceil(GROUP_BYTES)],
            _ => vec![0, 0],
        };
        let is_whole = blocks.shape.last().is_some_and(|bytes| bytes.is_multiple_of(GROUP_BYTES));
        if !is_whole || exponents.shape != expected {
            return Err(files.shape_error(exponents, tensor, expected));
        }
        Ok(Matrix { blocks, exponents })
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        let (groups, rows) = self.exponents.shape.split_last().unwrap_or((&0, &[]));
        (rows.iter().product(), groups * GROUP)
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
        let (exponents, bytes) = self.groups(files, first_row, out.len() / GROUP)?;
        let groups = exponents.iter().zip(bytes.chunks_exact(GROUP_BYTES));
        for ((exponent, bytes), out) in groups.zip(out.chunks_exact_mut(GROUP)) {
            let factor = 2f64.powi(i32::from(*exponent) - 127);
            for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
                let value = |q: u8| (f64::from(VALUES[usize::from(q)]) * factor) as f32;
                (pair[0], pair[1]) = (value(byte & 15), value(byte >> 4));
            }
        }
        Ok(())
    }

    /// Reads rows, starting at `first_row`, as blocks of GGUF's type.
    ///
    /// # Errors
    /// A file that ends early.
    pub(super) fn read_blocks(
        &self,
        files: &Checkpoint,
        first_row: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let (exponents, bytes) = self.groups(files, first_row, out.len() / BLOCK_BYTES)?;
        let groups = exponents.iter().zip(bytes.chunks_exact(GROUP_BYTES));
        for ((exponent, bytes), block) in groups.zip(out.chunks_exact_mut(BLOCK_BYTES)) {
            block[0] = *exponent;
            let q = |element: usize| bytes[element / 2] >> (element % 2 * 4) & 15;
            for (i, byte) in block[1..].iter_mut().enumerate() {
                *byte = q(i) | q(i + GROUP_BYTES) << 4;
            }
        }
        Ok(())
    }

    /// Reads the exponents and bytes of `count` groups.
    fn groups(
        &self,
        files: &Checkpoint,
        first_row: usize,
        count: usize,
    ) -> Result<(Vec<u8>, Vec<u8>), SourceError> {
        let first = first_row * (self.shape().1 / GROUP);
        files.read_groups([self.exponents, self.blocks], GROUP_BYTES, first, count)
    }
}
