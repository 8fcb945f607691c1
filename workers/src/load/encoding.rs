//! Pieces of tensors, and their conversion to the encoding that the plan stores them in.

use half::bf16;
use kernels::Variant;
use kernels::quant::{from_blocks, quantise};
use model::config::Dtype;
use model::quantized_format::{Grouped, ROWS};
use model::source::{TensorId, WeightSource};

use super::error::LoadError;
use super::finite;

/// Encoding of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain(Dtype),
    Grouped(Grouped),
}

impl Encoding {
    /// Returns the bytes of `rows` rows of `columns` elements; a grouped encoding consists of whole
    /// blocks of rows.
    pub(super) fn size_bytes(self, rows: usize, columns: usize) -> usize {
        match self {
            Encoding::Plain(dtype) => rows * columns * dtype.size_bytes(),
            Encoding::Grouped(grouped) => grouped.size_bytes(rows, columns),
        }
    }

    /// Returns the granularity in rows of the beginning and, except for the last piece, the end of
    /// a piece.
    pub(super) fn row_step(self) -> usize {
        match self {
            Encoding::Plain(_) => 1,
            Encoding::Grouped(_) => ROWS,
        }
    }
}

/// A piece of a tensor and its place in a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TensorPiece {
    pub(super) id: TensorId,
    /// Offset from the blob's first byte.
    pub(super) offset_bytes: usize,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) encoding: Encoding,
}

impl TensorPiece {
    pub(super) fn size_bytes(&self) -> usize {
        self.encoding.size_bytes(self.rows, self.columns)
    }
}

/// Reads a piece into `out`, which has the size of the piece.
pub(super) fn read(
    piece: &TensorPiece,
    variant: Variant,
    source: &dyn WeightSource,
    out: &mut [u8],
) -> Result<(), LoadError> {
    let TensorPiece { id, first_row, rows, columns, encoding, .. } = *piece;
    match encoding {
        Encoding::Plain(Dtype::Bf16) => {
            let out: &mut [bf16] = bytemuck::cast_slice_mut(out);
            source.read_bf16(id, first_row, out)?;
            check_finite(piece, finite::first_bf16(out))?;
        }
        Encoding::Plain(Dtype::F32) => {
            let out: &mut [f32] = bytemuck::cast_slice_mut(out);
            source.read_f32(id, first_row, out)?;
            check_finite(piece, finite::first_f32(out))?;
        }
        Encoding::Grouped(grouped) => {
            let stored = source.stored_type(id)?;
            if stored.grouped() == Some(grouped) {
                // The file has the same encoding: its blocks are rearranged, and no value changes.
                let mut blocks = vec![0u8; rows * stored.row_bytes(columns)];
                source.read_blocks(id, first_row, &mut blocks)?;
                check_finite(piece, finite::first_in_blocks(stored, &blocks))?;
                from_blocks(stored, &blocks, columns, out)
                    .map_err(|source| LoadError::Repack { tensor: format!("{id:?}"), source })?;
            } else {
                let mut values = vec![0f32; rows * columns];
                source.read_f32(id, first_row, &mut values)?;
                check_finite(piece, finite::first_f32(&values))?;
                quantise(variant, grouped, &values, columns, out);
            }
        }
    }
    Ok(())
}

/// Returns an error if `index` names a value of the piece that is not finite.
fn check_finite(piece: &TensorPiece, index: Option<usize>) -> Result<(), LoadError> {
    let Some(index) = index else { return Ok(()) };
    let columns = piece.columns.max(1);
    Err(LoadError::NotFinite {
        tensor: format!("{:?}", piece.id),
        row: piece.first_row + index / columns,
        column: index % columns,
    })
}
