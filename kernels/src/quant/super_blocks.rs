//! Conversion of GGUF's blocks of 256 elements to rows of records.

use model::quantized_format::{ROWS, SUPER_BLOCK, ScaleLayout};
use model::source::StoredType;
use model::source::low_bit::LowBitBlock;

use super::record::store;

/// Elements of a part of Q4_K, Q5_K and IQ4_XS. A part of Q6_K has `SHORT_PART` elements.
const PART: usize = 32;
const SHORT_PART: usize = 16;
/// Parts of 32 elements in a block.
const PARTS: usize = SUPER_BLOCK / PART;

/// Writes a block as row `row` of a record.
pub(super) fn convert(stored: StoredType, block: &[u8], record: &mut [u8], row: usize) {
    match stored {
        StoredType::Q4K => {
            ranges(block, record, row);
            integers(stored, record, row, PART, &halves(&block[16..]));
        }
        StoredType::Q5K => {
            ranges(block, record, row);
            let mut q = halves(&block[48..]);
            for (part, q) in q.chunks_exact_mut(PART).enumerate() {
                for (q, bits) in q.iter_mut().zip(&block[16..48]) {
                    *q |= (bits >> part & 1) << 4;
                }
            }
            integers(stored, record, row, PART, &q);
        }
        StoredType::Q6K => {
            record[2 * row..][..2].copy_from_slice(&block[208..]);
            for (part, scale) in block[192..208].iter().enumerate() {
                record[2 * ROWS + part * ROWS + row] = *scale;
            }
            integers(stored, record, row, SHORT_PART, &six_bits(block));
        }
        StoredType::Iq4Xs => {
            record[2 * row..][..2].copy_from_slice(&block[..2]);
            let upper = u16::from_le_bytes([block[2], block[3]]);
            let mut q = [0; SUPER_BLOCK];
            for (part, q) in q.chunks_exact_mut(PART).enumerate() {
                let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
                let scale = low + 16 * (upper >> (2 * part) & 3) as u8;
                record[2 * ROWS + part * ROWS + row] = scale.wrapping_sub(32);
                let bytes = &block[8 + 16 * part..][..16];
                for (i, byte) in bytes.iter().enumerate() {
                    (q[i], q[i + 16]) = (byte & 15, byte >> 4);
                }
            }
            integers(stored, record, row, PART, &q);
        }
        low_bit => {
            let Some(decoded) = LowBitBlock::decode(stored, block) else {
                unreachable!("{low_bit:?} has no blocks of 256");
            };
            set_low_bit(stored, &decoded, record, row);
        }
    }
}

/// Writes a decoded block as row `row` of a record.
fn set_low_bit(stored: StoredType, decoded: &LowBitBlock, record: &mut [u8], row: usize) {
    let Some(format) = stored.grouped() else { unreachable!("{stored:?} has a form") };
    let groups = SUPER_BLOCK / format.group;
    let has_minimums = format.scales.has_minimums();
    record[2 * row..][..2].copy_from_slice(&decoded.scale.to_le_bytes());
    if has_minimums {
        record[2 * (ROWS + row)..][..2].copy_from_slice(&decoded.minimum.to_le_bytes());
    }
    for group in 0..groups {
        let scale = decoded.scales[group].cast_unsigned();
        match format.scales {
            ScaleLayout::HalfByteProducts => {
                let minimum = decoded.minimums[group].unsigned_abs();
                record[4 * ROWS + group * ROWS + row] = scale | minimum << 4;
            }
            ScaleLayout::Products => record[2 * ROWS + group * ROWS + row] = scale,
            ScaleLayout::SuperScales => {}
            scales => unreachable!("{stored:?} has no {scales:?}"),
        }
    }
    integers(stored, record, row, format.group, &decoded.codes);
}

/// Stores the integers of a row.
fn integers(stored: StoredType, record: &mut [u8], row: usize, part: usize, q: &[u8; SUPER_BLOCK]) {
    let Some(format) = stored.grouped() else { unreachable!("{stored:?} has a form") };
    for (group, q) in q.chunks_exact(part).enumerate() {
        store(format, record, row, group, q);
    }
}

/// Stores the two f16 factors of a Q4_K or Q5_K block, and its eight scales and minimums of 6 bits
/// as bytes. Minimums are subtracted, so their bytes are negative.
fn ranges(block: &[u8], record: &mut [u8], row: usize) {
    record[2 * row..][..2].copy_from_slice(&block[..2]);
    record[2 * (ROWS + row)..][..2].copy_from_slice(&block[2..4]);
    let packed = &block[4..16];
    for part in 0..PARTS {
        // Parts 0 to 3 have the low six bits of a byte. Each of the other parts has the upper two
        // bits of one byte as its upper bits, and one half of another byte as its lower four.
        let (scale, minimum) = if part < 4 {
            (packed[part] & 63, packed[part + 4] & 63)
        } else {
            let both = packed[part + 4];
            (both & 15 | packed[part - 4] >> 6 << 4, both >> 4 | packed[part] >> 6 << 4)
        };
        let at = 4 * ROWS + part * 2 * ROWS + row;
        record[at] = scale;
        record[at + ROWS] = minimum.wrapping_neg();
    }
}

/// Expands bytes to integers. Each 32 bytes hold an even part in their low halves and an odd part
/// in their high halves.
fn halves(bytes: &[u8]) -> [u8; SUPER_BLOCK] {
    let mut q = [0; SUPER_BLOCK];
    for (bytes, q) in bytes.chunks_exact(PART).zip(q.chunks_exact_mut(2 * PART)) {
        let (even, odd) = q.split_at_mut(PART);
        for ((byte, even), odd) in bytes.iter().zip(even).zip(odd) {
            (*even, *odd) = (byte & 15, byte >> 4);
        }
    }
    q
}

/// Expands the integers of Q6_K. In each half of the block, quarter `t` of 32 elements consists of
/// the low (t < 2) or high halves of 32 bytes, and bits `2t` and `2t + 1` of 32 other bytes.
fn six_bits(block: &[u8]) -> [u8; SUPER_BLOCK] {
    let (low, upper) = block[..192].split_at(128);
    let mut q = [0; SUPER_BLOCK];
    for (quarter, q) in q.chunks_exact_mut(PART).enumerate() {
        let (half, t) = (quarter / 4, quarter % 4);
        let low = &low[half * 64 + t % 2 * 32..][..PART];
        let upper = &upper[half * 32..][..PART];
        for ((q, low), upper) in q.iter_mut().zip(low).zip(upper) {
            *q = low >> (t / 2 * 4) & 15 | (upper >> (2 * t) & 3) << 4;
        }
    }
    q
}
