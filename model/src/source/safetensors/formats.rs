//! The storage formats of a checkpoint's matrices, and the rows of a piece within them.

use safetensors::tensor::Dtype as Stored;

use super::files::{ByteRange, Checkpoint};
use super::integer_rows::IntegerMatrix;
use super::module_formats::{DeclaredFormats, has_one_byte};
use super::{fp8, integers, mxfp4, nvfp4, packed_integers};
use crate::family::TensorSlice;
use crate::quantization::{FactorLayout, ModuleFormat, QuantGroup, Quantization};
use crate::source::SourceError;

/// A tensor that was found, or a packed matrix.
pub(super) enum StorageFormat<'a> {
    Plain(&'a ByteRange),
    Packed(PackedFormat<'a>),
}

/// Returns true for names of tensors of one expert.
fn is_expert(name: &str) -> bool {
    name.contains(".experts.")
}

/// Returns the name of the factors of the 8-bit floats `name` of module `stem`. Those of DeepSeek
/// V4 have another name than those of other models.
///
/// # Errors
/// Factors of neither name.
fn fp8_factors(files: &Checkpoint, name: &str, stem: &str) -> Result<String, SourceError> {
    let names = [format!("{name}_scale_inv"), format!("{stem}.scale")];
    let [usual, other] = &names;
    match names.iter().find(|name| files.get(name).is_some()) {
        Some(name) => Ok(name.clone()),
        None => Err(SourceError::Missing {
            path: files.directory.display().to_string(),
            tensor: format!("{usual} (or {other})"),
        }),
    }
}

/// A matrix that is stored in several tensors.
pub(super) enum PackedFormat<'a> {
    Fp8(fp8::Matrix<'a>),
    Mxfp4(mxfp4::Matrix<'a>),
    Integers(Box<dyn IntegerMatrix + 'a>),
    Nvfp4(nvfp4::Matrix<'a>),
}

/// Rows of a piece in a packed matrix. The rows of the matrix are all rows of the checkpoint's
/// tensor, consecutively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedRows {
    pub(super) first: usize,
    pub(super) step: usize,
    /// Shape of the whole matrix.
    pub(super) shape: (usize, usize),
}

impl<'a> StorageFormat<'a> {
    /// Finds the tensor or packed matrix with the given name; `None` if there is none.
    ///
    /// # Errors
    /// Inconsistent tensors, or types that are not supported.
    pub(super) fn find(
        files: &'a Checkpoint,
        name: &str,
        declared: &DeclaredFormats,
    ) -> Result<Option<StorageFormat<'a>>, SourceError> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let packed = match (files.get(name), &declared.quantization) {
            (Some(stretch), Quantization::Fp8 { block, .. })
                if stretch.stored == Stored::F8_E4M3 =>
            {
                let factors = fp8_factors(files, name, stem)?;
                Some(PackedFormat::Fp8(fp8::Matrix::new(files, name, &factors, *block)?))
            }
            (Some(stretch), Quantization::Fp8 { has_fp4_experts: true, .. })
                if is_expert(name) && has_one_byte(stretch.stored) =>
            {
                Some(PackedFormat::Mxfp4(mxfp4::Matrix::of_scale(files, stem)?))
            }
            (Some(stretch), Quantization::ByModule(_)) if has_one_byte(stretch.stored) => {
                PackedFormat::declared(files, stem, declared)?
            }
            (Some(stretch), _) => return Ok(Some(StorageFormat::Plain(stretch))),
            (None, Quantization::Mxfp4) => {
                mxfp4::Matrix::find(files, stem)?.map(PackedFormat::Mxfp4)
            }
            (None, Quantization::ByModule(_)) => PackedFormat::declared(files, stem, declared)?,
            (None, quantization) => {
                let matrix = integers::Matrix::find(files, stem, quantization)?;
                matrix.map(|matrix| PackedFormat::Integers(Box::new(matrix)))
            }
        };
        Ok(packed.map(StorageFormat::Packed))
    }

    /// Returns the actual and the required shape if they differ.
    pub(super) fn mismatch(&self, piece: &TensorSlice) -> Option<(Vec<usize>, Vec<usize>)> {
        let (found, expected) = match self {
            StorageFormat::Plain(stretch) => (stretch.shape.clone(), piece.shape.clone()),
            StorageFormat::Packed(packed) => {
                let (found, expected) = (packed.shape(), PackedRows::of(piece).shape);
                (vec![found.0, found.1], vec![expected.0, expected.1])
            }
        };
        (found != expected).then_some((found, expected))
    }
}

impl<'a> PackedFormat<'a> {
    /// Creates the matrix of module `stem`; `None` if it is not packed.
    ///
    /// # Errors
    /// A packed matrix that the configuration leaves out, or the errors of
    /// [`PackedFormat::of_module`].
    fn declared(
        files: &'a Checkpoint,
        stem: &str,
        declared: &DeclaredFormats,
    ) -> Result<Option<PackedFormat<'a>>, SourceError> {
        let format = declared.format(files, stem)?;
        format.map(|format| PackedFormat::of_module(files, stem, format)).transpose()
    }

    /// Creates the matrix of module `stem` in a format.
    ///
    /// # Errors
    /// Tensors that are missing, inconsistent, or of types that are not supported.
    fn of_module(
        files: &'a Checkpoint,
        stem: &str,
        format: ModuleFormat,
    ) -> Result<PackedFormat<'a>, SourceError> {
        match format {
            ModuleFormat::Integers(format) => {
                let matrix = packed_integers::Matrix::new(files, stem, format)?;
                Ok(PackedFormat::Integers(Box::new(matrix)))
            }
            ModuleFormat::Floats(factors) => {
                let block = match factors {
                    FactorLayout::All => None,
                    FactorLayout::Groups(QuantGroup::Row) => Some((1, usize::MAX)),
                    FactorLayout::Groups(QuantGroup::Inputs(size)) => Some((1, size)),
                    FactorLayout::Blocks(rows, inputs) => Some((rows, inputs)),
                };
                let (name, factors) = (format!("{stem}.weight"), format!("{stem}.weight_scale"));
                fp8::Matrix::new(files, &name, &factors, block).map(PackedFormat::Fp8)
            }
            ModuleFormat::Mxfp4 => mxfp4::Matrix::of_module(files, stem).map(PackedFormat::Mxfp4),
            ModuleFormat::Nvfp4(factor) => {
                nvfp4::Matrix::new(files, stem, factor).map(PackedFormat::Nvfp4)
            }
        }
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        match self {
            PackedFormat::Fp8(matrix) => matrix.shape(),
            PackedFormat::Mxfp4(matrix) => matrix.shape(),
            PackedFormat::Integers(matrix) => matrix.shape(),
            PackedFormat::Nvfp4(matrix) => matrix.shape(),
        }
    }

    /// Reads the values of rows, starting at `first_row`.
    ///
    /// # Errors
    /// A file that ends early.
    pub(super) fn read(
        &self,
        files: &Checkpoint,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), SourceError> {
        match self {
            PackedFormat::Fp8(matrix) => matrix.read(files, first_row, out),
            PackedFormat::Mxfp4(matrix) => matrix.read(files, first_row, out),
            PackedFormat::Integers(matrix) => matrix.read(files, first_row, out),
            PackedFormat::Nvfp4(matrix) => matrix.read(files, first_row, out),
        }
    }
}

impl PackedRows {
    /// Returns the rows of a piece. The rows of a packed matrix are its outputs, even if the plain
    /// tensor that the piece describes is transposed. For a piece that is itself the transpose of
    /// rows of the tensor, returns those rows.
    pub(super) fn of(piece: &TensorSlice) -> PackedRows {
        let (last, before) = piece.shape.split_last().unwrap_or((&1, &[]));
        let all: usize = before.iter().product();
        let (row_stride, stride) = piece.strides;
        if piece.is_transposed {
            return PackedRows { first: piece.first / last, step: 1, shape: (all, *last) };
        }
        if stride == 1 {
            let (first, step) = (piece.first / last, row_stride / last);
            return PackedRows { first, step, shape: (all, *last) };
        }
        let inputs = before.last().copied().unwrap_or(1).max(1);
        let matrix = piece.first / (inputs * last);
        let first = matrix * last + piece.first % last;
        PackedRows { first, step: row_stride, shape: (all / inputs * last, inputs) }
    }

    /// Calls `read` for runs of consecutive rows, starting at row `from` of the piece, with the
    /// part of `out` that each run fills. A row takes `size` elements of `out`.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn each_run<T>(
        self,
        from: usize,
        out: &mut [T],
        size: usize,
        mut read: impl FnMut(usize, &mut [T]) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        if self.step == 1 {
            return read(self.first + from, out);
        }
        for (row, out) in out.chunks_exact_mut(size).enumerate() {
            read(self.first + (from + row) * self.step, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(shape: &[usize], first: usize, strides: (usize, usize)) -> PackedRows {
        let (rows, columns) = (1, 1);
        let shape = shape.to_vec();
        let names = Vec::new();
        let is_transposed = false;
        PackedRows::of(&TensorSlice { names, shape, first, rows, columns, strides, is_transposed })
    }

    #[test]
    fn rows_of_pieces_are_rows_of_packed_matrices() {
        let of = |first, step, shape| PackedRows { first, step, shape };
        // A whole matrix, a range of its rows, and the third of several stacked matrices from its
        // second row.
        assert_eq!(rows(&[6, 32], 0, (32, 1)), of(0, 1, (6, 32)));
        assert_eq!(rows(&[6, 32], 2 * 32, (32, 1)), of(2, 1, (6, 32)));
        assert_eq!(rows(&[5, 6, 32], (2 * 6 + 1) * 32, (32, 1)), of(13, 1, (30, 32)));
        // Transposed `[experts, in, out]`: all outputs, and every other output from the second.
        assert_eq!(rows(&[5, 32, 6], 2 * 32 * 6, (1, 6)), of(12, 1, (30, 32)));
        assert_eq!(rows(&[5, 32, 6], 2 * 32 * 6 + 1, (2, 6)), of(13, 2, (30, 32)));
    }
}
