//! Lossless conversion of GGUF's blocks of 32 elements, and NVFP4's of 16, to records, at load. A
//! decoded value is the number that the file's own reader computes, bit for bit except for the sign
//! of a zero. Blocks of 256 elements are converted by `super_blocks`.

use half::f16;
use model::quantized_format::{Grouped, ROWS, SUPER_BLOCK, ScaleLayout};
use model::source::StoredType;
use model::source::float8::{E4M3_MAX, e4m3};

use super::record::{set_scale_and_minimum, store};
use super::super_blocks;

/// Elements of a block, and of a group of the records that blocks become.
const BLOCK: usize = 32;
/// Bias of MXFP4's exponents: the values of its table are multiplied by `2^(e - 128)`.
const MXFP4_BIAS: u8 = 128;

/// Reason for which blocks could not become records. The matrix can still be expanded.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RepackError {
    /// `-8 * scale` cannot be represented in f16.
    #[error(
        "A Q4_0 block of row {row}, block {block}, has the scale {scale}, which is too large to be kept in 4 bits with a minimum; the tensor must be expanded."
    )]
    Scale { row: usize, block: usize, scale: f16 },
    /// An 8-bit float that is negative or no number.
    #[error(
        "An NVFP4 group of row {row}, group {group}, has the factor {factor}, which is negative or \
         no number; the tensor must be expanded."
    )]
    Factor { row: usize, group: usize, factor: f32 },
    /// The type has no grouped format.
    #[error("{0} has no grouped format; the tensor must be expanded.")]
    Type(&'static str),
}

/// Converts rows of `k` elements of type `stored` to records of `stored.grouped()`. `blocks` holds
/// the stored bytes of the rows; `out` holds the records of the same number of rows and is
/// overwritten completely. A matrix can be passed in pieces of whole blocks of 16 rows.
///
/// # Errors
/// Fails if the type has no grouped format, or a Q4_0 scale is beyond an eighth of f16's range.
///
/// # Panics
/// Panics if blocks do not divide `k`, or the lengths do not match.
pub fn from_blocks(
    stored: StoredType,
    blocks: &[u8],
    k: usize,
    out: &mut [u8],
) -> Result<(), RepackError> {
    if stored.block().0 == SUPER_BLOCK {
        each_block(stored, blocks, k, out, |block, record, place| {
            super_blocks::convert(stored, block, record, place.row % ROWS);
        });
        return Ok(());
    }
    match stored {
        StoredType::Q4_0 => return from_q4_0(blocks, k, out),
        StoredType::Q4_1 => from_q4_1(blocks, k, out),
        StoredType::Q5_0 => from_q5_0(blocks, k, out),
        StoredType::Q5_1 => from_q5_1(blocks, k, out),
        StoredType::Q8_0 => from_q8_0(blocks, k, out),
        StoredType::Iq4Nl => from_iq4_nl(blocks, k, out),
        StoredType::Mxfp4 => from_mxfp4(blocks, k, out),
        StoredType::Nvfp4 => return from_nvfp4(blocks, k, out),
        _ => return Err(RepackError::Type(stored.name())),
    }
    Ok(())
}

/// Converts Q4_0, `scale * (q - 8)`, like [`from_blocks`]. The minimum is `-8 * scale`, which f16
/// represents exactly unless it overflows.
///
/// # Errors
/// Fails if a scale is beyond an eighth of f16's range, or not finite.
///
/// # Panics
/// Panics under the conditions of [`from_blocks`].
pub fn from_q4_0(blocks: &[u8], k: usize, out: &mut [u8]) -> Result<(), RepackError> {
    let mut refused = None;
    each_block(StoredType::Q4_0, blocks, k, out, |block, record, place| {
        let scale = half_at(block, 0);
        let minimum = f16::from_f32(-8.0 * scale.to_f32());
        if !minimum.is_finite() {
            refused.get_or_insert(RepackError::Scale { row: place.row, block: place.block, scale });
        }
        set_scale_and_minimum(record, place.row % ROWS, scale, minimum);
        store(Grouped::GGUF_Q4, record, place.row % ROWS, 0, &nibbles(&block[2..]));
    });
    refused.map_or(Ok(()), Err)
}

/// Converts Q4_1, `scale * q + minimum`, like [`from_blocks`].
///
/// # Panics
/// Panics under the conditions of [`from_blocks`].
pub fn from_q4_1(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Q4_1, blocks, k, out, |block, record, place| {
        set_scale_and_minimum(record, place.row % ROWS, half_at(block, 0), half_at(block, 2));
        store(Grouped::GGUF_Q4, record, place.row % ROWS, 0, &nibbles(&block[4..]));
    });
}

/// Converts Q8_0, `scale * q`, like [`from_blocks`]. The minimum is 0.
///
/// # Panics
/// Panics under the conditions of [`from_blocks`].
pub fn from_q8_0(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Q8_0, blocks, k, out, |block, record, place| {
        let row = place.row % ROWS;
        set_scale_and_minimum(record, row, half_at(block, 0), f16::ZERO);
        store(Grouped::GGUF_Q8, record, row, 0, &block[2..]);
    });
}

/// Converts Q5_0, `scale * (q - 16)`.
fn from_q5_0(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Q5_0, blocks, k, out, |block, record, place| {
        set_half_scale(record, place, half_at(block, 0));
        let q = with_fifth_bits(nibbles(&block[6..]), &block[2..6]);
        store(Grouped::GGUF_Q5_0, record, place.row % ROWS, place.group, &q);
    });
}

/// Converts Q5_1, `scale * q + minimum`.
fn from_q5_1(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Q5_1, blocks, k, out, |block, record, place| {
        set_scale_and_minimum(record, place.row % ROWS, half_at(block, 0), half_at(block, 2));
        let q = with_fifth_bits(nibbles(&block[8..]), &block[4..8]);
        store(Grouped::GGUF_Q5_1, record, place.row % ROWS, 0, &q);
    });
}

/// Converts IQ4_NL, `scale * table[q]`.
fn from_iq4_nl(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Iq4Nl, blocks, k, out, |block, record, place| {
        set_half_scale(record, place, half_at(block, 0));
        let q = nibbles(&block[2..]);
        store(Grouped::GGUF_IQ4_NL, record, place.row % ROWS, place.group, &q);
    });
}

/// Converts MXFP4, `2^(e - 128) * table[q]`.
fn from_mxfp4(blocks: &[u8], k: usize, out: &mut [u8]) {
    each_block(StoredType::Mxfp4, blocks, k, out, |block, record, place| {
        let row = place.row % ROWS;
        record[place.group * ROWS + row] = block[0].wrapping_sub(MXFP4_BIAS);
        store(Grouped::GGUF_MXFP4, record, row, place.group, &nibbles(&block[1..]));
    });
}

/// Converts NVFP4, `factor * e4m3 * table[q]`. The factor is that of the matrix, so the blocks of
/// a row have the same.
fn from_nvfp4(blocks: &[u8], k: usize, out: &mut [u8]) -> Result<(), RepackError> {
    let mut refused = None;
    each_block(StoredType::Nvfp4, blocks, k, out, |block, record, place| {
        let row = place.row % ROWS;
        if block[4] > E4M3_MAX {
            let (row, group, factor) = (place.row, place.block, e4m3(block[4]));
            refused.get_or_insert(RepackError::Factor { row, group, factor });
        }
        record[4 * row..][..4].copy_from_slice(&block[..4]);
        record[4 * ROWS + place.group * ROWS + row] = block[4];
        let mut q = [0; 16];
        for (byte, pair) in block[5..].iter().zip(q.as_chunks_mut::<2>().0) {
            *pair = [byte & 15, byte >> 4];
        }
        store(Grouped::NVFP4, record, row, place.group, &q);
    });
    refused.map_or(Ok(()), Err)
}

/// Position of a block among the given rows.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    block: usize,
    /// Group of the record in which the block begins.
    group: usize,
}

/// Calls `convert` with each block, the record that it belongs to and its position.
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
    let (elements, block_bytes) = stored.block();
    let row_bytes = stored.row_bytes(k);
    assert!(k > 0 && k.is_multiple_of(elements), "blocks of {elements} do not divide rows of {k}");
    assert!(blocks.len().is_multiple_of(row_bytes), "the blocks are not whole rows");
    let rows = blocks.len() / row_bytes;
    assert_eq!(out.len(), format.size_bytes(rows, k), "the output has another size");
    clear_padding(format, rows, k, out);
    let in_record = format.record_inputs() / elements;
    for (row, blocks) in blocks.chunks_exact(row_bytes).enumerate() {
        let records = &mut out[row / ROWS * format.block_bytes(k)..][..format.block_bytes(k)];
        for (block, bytes) in blocks.chunks_exact(block_bytes).enumerate() {
            let record = &mut records[block / in_record * format.record_bytes()..];
            let group = block % in_record * (elements / format.group);
            convert(bytes, &mut record[..format.record_bytes()], Place { row, block, group });
        }
    }
}

/// Writes zeros to the rows that are missing from the last block, the inputs that are missing from
/// the last record of each block, and the bytes between scales and integers.
fn clear_padding(format: Grouped, rows: usize, k: usize, out: &mut [u8]) {
    let block_bytes = format.block_bytes(k);
    if !rows.is_multiple_of(ROWS) {
        let last = out.len() - block_bytes;
        out[last..].fill(0);
    }
    if matches!(format.scales, ScaleLayout::Products | ScaleLayout::SuperScales) {
        // Scales end before their last line does.
        for record in out.chunks_exact_mut(format.record_bytes()) {
            record[..format.scales.size_bytes(format.group)].fill(0);
        }
    }
    if !k.is_multiple_of(format.record_inputs()) {
        for block in out.chunks_exact_mut(block_bytes) {
            block[block_bytes - format.record_bytes()..].fill(0);
        }
    }
}

/// Sets one of several f16 scales of a row of a record.
fn set_half_scale(record: &mut [u8], place: Place, scale: f16) {
    let at = 2 * (place.group * ROWS + place.row % ROWS);
    record[at..at + 2].copy_from_slice(&scale.to_le_bytes());
}

/// Sets the fifth bit of integer `i` to bit `i` of four bytes.
#[inline(always)]
fn with_fifth_bits(mut q: [u8; BLOCK], bits: &[u8]) -> [u8; BLOCK] {
    for (i, q) in q.iter_mut().enumerate() {
        *q |= (bits[i / 8] >> (i % 8) & 1) << 4;
    }
    q
}

fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Expands 16 bytes to integers in the order of the elements: first the low halves, then the high
/// halves.
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
