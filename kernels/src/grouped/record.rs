//! Places within a record of a grouped matrix, and the values of a row, read plainly: what the fast
//! kernels are compared with.

use half::f16;
use model::compressed::{Bits, Grouped, ROWS};

/// Where the minimums begin.
const MINIMUMS: usize = 2 * ROWS;
/// Where the integers begin.
pub(super) const INTEGERS: usize = 4 * ROWS;
/// Bytes of a vector of dwords, one for each row.
pub(super) const VECTOR_BYTES: usize = 4 * ROWS;

/// Scale and minimum of row `row` of a record's 16.
///
/// # Panics
/// When the record has no such row.
pub fn scale_and_minimum(record: &[u8], row: usize) -> (f16, f16) {
    assert!(row < ROWS, "a record has {ROWS} rows, not row {row}");
    let at = |at: usize| f16::from_le_bytes([record[at], record[at + 1]]);
    (at(2 * row), at(MINIMUMS + 2 * row))
}

pub(super) fn set_scale_and_minimum(record: &mut [u8], row: usize, scale: f16, minimum: f16) {
    record[2 * row..][..2].copy_from_slice(&scale.to_le_bytes());
    record[MINIMUMS + 2 * row..][..2].copy_from_slice(&minimum.to_le_bytes());
}

/// The integer of input `k` of the group and row `row` of a record's 16.
///
/// # Panics
/// When the record has no such row or input.
pub fn integer(format: Grouped, record: &[u8], row: usize, k: usize) -> i32 {
    assert!(row < ROWS && k < format.group, "row {row}, input {k} of {format:?}");
    let dword = |vector: usize| INTEGERS + vector * VECTOR_BYTES + 4 * row;
    match format.bits {
        Bits::Four => {
            // Even inputs in the low half of the dword, odd ones in the high half.
            let nibble = k % 8 / 2 + k % 2 * 4;
            i32::from(record[dword(k / 8) + nibble / 2] >> (nibble % 2 * 4) & 15)
        }
        Bits::Eight => i32::from(i8::from_le_bytes([record[dword(k / 4) + k % 4]])),
    }
}

/// Stores the 4-bit integers `q`, one a byte, of a row: the whole group.
#[inline(always)]
pub(super) fn store_nibbles(record: &mut [u8], row: usize, q: &[u8]) {
    for (vector, eight) in q.as_chunks::<8>().0.iter().enumerate() {
        let dword = pack_nibbles(u64::from_le_bytes(*eight));
        record[INTEGERS + vector * VECTOR_BYTES + 4 * row..][..4]
            .copy_from_slice(&dword.to_le_bytes());
    }
}

/// Stores the 8-bit integers `q` of a row: the whole group.
#[inline(always)]
pub(super) fn store_bytes(record: &mut [u8], row: usize, q: &[u8]) {
    for (vector, four) in q.as_chunks::<4>().0.iter().enumerate() {
        record[INTEGERS + vector * VECTOR_BYTES + 4 * row..][..4].copy_from_slice(four);
    }
}

/// Eight integers below 16, one in each byte, as the dword of a record.
#[inline(always)]
fn pack_nibbles(bytes: u64) -> u32 {
    // Bytes 0, 2, 4, 6 in 16-bit fields, gathered into pairs, then into one half of the dword.
    let gather = |fields: u64| {
        let pairs = (fields | fields >> 12) & 0x0000_00ff_0000_00ff;
        (pairs | pairs >> 24) as u32 & 0xffff
    };
    let low = 0x000f_000f_000f_000f;
    gather(bytes & low) | gather(bytes >> 8 & low) << 16
}

/// Row `row` of a grouped matrix of `k` inputs as f32, exactly as every kernel means it.
///
/// # Panics
/// When `out` is not a row or the matrix has no such row.
pub fn decode_row(format: Grouped, matrix: &[u8], k: usize, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), k, "the output is not one row");
    let block = &matrix[row / ROWS * format.block_bytes(k)..][..format.block_bytes(k)];
    let lane = row % ROWS;
    let records = block.chunks_exact(format.record_bytes());
    for (record, out) in records.zip(out.chunks_mut(format.group)) {
        let (scale, minimum) = scale_and_minimum(record, lane);
        for (k, out) in out.iter_mut().enumerate() {
            let product = scale.to_f32() * integer(format, record, lane, k) as f32;
            *out = product + minimum.to_f32();
        }
    }
}
