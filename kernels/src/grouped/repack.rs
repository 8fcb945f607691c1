//! GGUF's blocks of 32 elements to records, at load, without loss: a decoded value is the number
//! that the file's own reader computes, bit for bit but for the sign of a zero.

use half::f16;
use model::compressed::{Grouped, ROWS};
use model::source::StoredType;

use super::record::{INTEGERS, VECTOR_BYTES, set_scale_and_minimum, store_nibbles};

/// Elements of a block, and of a group of what becomes of it.
const BLOCK: usize = 32;

/// Why blocks could not become records. The matrix can still be expanded.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RepackError {
    /// `-8 * scale` has no f16.
    #[error(
        "A Q4_0 block of row {row}, block {block}, has the scale {scale}, which is too large to be kept in 4 bits with a minimum; the tensor must be expanded."
    )]
    Scale { row: usize, block: usize, scale: f16 },
    /// A type without a grouped format.
    #[error("{0} has no grouped format; the tensor must be expanded.")]
    Type(&'static str),
}

/// Rows of `k` elements, stored as `stored`, to records of `stored.grouped()`: `blocks` are the
/// rows' stored bytes, and `out` the records of as many rows, written whole. A matrix can be given
/// in pieces of whole blocks of 16 rows.
///
/// # Errors
/// A type without a grouped format, or a Q4_0 scale beyond an eighth of f16's range.
///
/// # Panics
/// Blocks do not divide `k`, or the lengths do not match.
pub fn from_blocks(
    stored: StoredType,
    blocks: &[u8],
    k: usize,
    out: &mut [u8],
) -> Result<(), RepackError> {
    match stored {
        StoredType::Q4_0 => return from_q4_0(blocks, k, out),
        StoredType::Q4_1 => from_q4_1(blocks, k, out),
        StoredType::Q8_0 => from_q8_0(blocks, k, out),
        other => return Err(RepackError::Type(other.name())),
    }
    Ok(())
}

/// [`from_blocks`] for Q4_0, `scale * (q - 8)`: the minimum is `-8 * scale`, which f16 holds
/// exactly unless it overflows.
///
/// # Errors
/// A scale beyond an eighth of f16's range, or not finite.
///
/// # Panics
/// As [`from_blocks`].
pub fn from_q4_0(blocks: &[u8], k: usize, out: &mut [u8]) -> Result<(), RepackError> {
    let mut refused = None;
    each_block(StoredType::Q4_0, blocks, k, out, |block, record, place| {
        let scale = half_at(block, 0);
        let minimum = f16::from_f32(-8.0 * scale.to_f32());
        if !minimum.is_finite() {
            refused.get_or_insert(RepackError::Scale { row: place.row, block: place.block, scale });
        }
        set_scale_and_minimum(record, place.row % ROWS, scale, minimum);
        store_nibbles(record, place.row % ROWS, &nibbles(&block[2..]));
    });
    refused.map_or(Ok(()), Err)
}

/// [`from_blocks`] for Q4_1, `scale * q + minimum`.
///
/// # Panics
/// As [`from_blocks`].
pub fn from_q4_1(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Q4_1, blocks, k, out, |block, record, place| {
        set_scale_and_minimum(record, place.row % ROWS, half_at(block, 0), half_at(block, 2));
        store_nibbles(record, place.row % ROWS, &nibbles(&block[4..]));
    });
}

/// [`from_blocks`] for Q8_0, `scale * q`: the minimum is 0.
///
/// # Panics
/// As [`from_blocks`].
pub fn from_q8_0(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Q8_0, blocks, k, out, |block, record, place| {
        let row = place.row % ROWS;
        set_scale_and_minimum(record, row, half_at(block, 0), f16::ZERO);
        for (vector, four) in block[2..].as_chunks::<4>().0.iter().enumerate() {
            record[INTEGERS + vector * VECTOR_BYTES + 4 * row..][..4].copy_from_slice(four);
        }
    });
}

/// Which block of the given rows.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    block: usize,
}

/// Calls `convert` with each block, the record it belongs in and its place.
#[inline(always)]
fn each_block(
    stored: StoredType,
    blocks: &[u8],
    k: usize,
    out: &mut [u8],
    mut convert: impl FnMut(&[u8], &mut [u8], Place),
) {
    let Some(format) = stored.grouped() else {
        unreachable!("only the functions above pass {stored:?}");
    };
    assert!(k > 0 && k.is_multiple_of(BLOCK), "blocks of {BLOCK} do not divide rows of {k}");
    let (row_bytes, (_, block_bytes)) = (stored.row_bytes(k), stored.block());
    assert!(blocks.len().is_multiple_of(row_bytes), "the blocks are not whole rows");
    let rows = blocks.len() / row_bytes;
    assert_eq!(out.len(), format.size_bytes(rows, k), "the output has another size");
    clear_padding(format, rows, k, out);
    for (row, blocks) in blocks.chunks_exact(row_bytes).enumerate() {
        let records = &mut out[row / ROWS * format.block_bytes(k)..][..format.block_bytes(k)];
        let records = records.chunks_exact_mut(format.record_bytes());
        for (index, (block, record)) in blocks.chunks_exact(block_bytes).zip(records).enumerate() {
            convert(block, record, Place { row, block: index });
        }
    }
}

/// Zeros where rows are missing from the last block.
fn clear_padding(format: Grouped, rows: usize, k: usize, out: &mut [u8]) {
    if !rows.is_multiple_of(ROWS) {
        let last = out.len() - format.block_bytes(k);
        out[last..].fill(0);
    }
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// 16 bytes to integers in the order of the elements: low halves, then high halves.
#[inline(always)]
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    let mut q = [0; BLOCK];
    let (low, high) = q.split_at_mut(BLOCK / 2);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
    q
}
