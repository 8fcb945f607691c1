//! Positions within a record of a grouped matrix, and a plain decoder of a row's values, which is
//! the reference for the fast kernels.

use half::f16;
use model::quantized_format::{Bits, Grouped, ROWS, ScaleLayout};
use model::source::float8::e4m3;

/// Byte offset of the f16 minimums in a record that begins with as many f16 scales.
const MINIMUMS: usize = 2 * ROWS;
/// Bytes of a vector of dwords, one for each row.
pub(super) const VECTOR_BYTES: usize = 4 * ROWS;

/// Returns the scale and minimum of row `row` of a record's 16 rows, for a format with
/// [`Scales::Halves`].
///
/// # Panics
/// Panics if the record has no such row.
pub fn scale_and_minimum(record: &[u8], row: usize) -> (f16, f16) {
    assert!(row < ROWS, "a record has {ROWS} rows, not row {row}");
    (half(record, 2 * row), half(record, MINIMUMS + 2 * row))
}

fn half(record: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([record[at], record[at + 1]])
}

/// Returns the scale and minimum of row `row` of a record's 16 rows and of group `group` of the
/// record.
///
/// # Panics
/// Panics if the record has no such row or group.
pub fn range(format: Grouped, record: &[u8], row: usize, group: usize) -> (f32, f32) {
    let groups = format.scales.groups(format.group);
    assert!(row < ROWS && group < groups, "row {row}, group {group} of {format:?}");
    let half = |at: usize| half(record, at).to_f32();
    let float = |at: usize| {
        f32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
    };
    let byte = |at: usize| f32::from(i8::from_le_bytes([record[at]]));
    match format.scales {
        ScaleLayout::Halves => (half(2 * row), half(MINIMUMS + 2 * row)),
        ScaleLayout::HalfScales => (half(2 * (group * ROWS + row)), 0.0),
        ScaleLayout::Floats => (float(4 * row), float(4 * (ROWS + row))),
        ScaleLayout::PowersOfTwo => (2f64.powf(f64::from(byte(group * ROWS + row))) as f32, 0.0),
        ScaleLayout::Products => {
            let product = half(2 * row) * byte(2 * ROWS + group * ROWS + row);
            (product * format.unit(), 0.0)
        }
        ScaleLayout::ProductsAndMinimums => {
            let at = 4 * ROWS + group * 2 * ROWS + row;
            (half(2 * row) * byte(at), half(MINIMUMS + 2 * row) * byte(at + ROWS))
        }
        ScaleLayout::HalfByteProducts => {
            let both = record[4 * ROWS + group * ROWS + row];
            let minimum = -i32::from(both >> 4);
            (half(2 * row) * f32::from(both & 15), half(MINIMUMS + 2 * row) * minimum as f32)
        }
        ScaleLayout::SuperScales => (half(2 * row), 0.0),
        ScaleLayout::FloatProducts => {
            (float(4 * row) * e4m3(record[4 * ROWS + group * ROWS + row]), 0.0)
        }
    }
}

/// Returns the byte offset of the integers of a group in its record, where those of groups begin
/// that are stored together.
pub(super) fn integers_at(format: Grouped, group: usize) -> usize {
    let first = group / format.groups_together() * format.groups_together();
    format.scales.size_bytes(format.group) + first * format.group_bytes()
}

/// Returns the number of steps of four inputs before a group in integers that are stored together.
pub(super) fn first_step(format: Grouped, group: usize) -> usize {
    group % format.groups_together() * format.group / 4
}

/// Returns the vector of third bits in integers of three bits, which follows those of two bits.
pub(super) fn third_vector(format: Grouped) -> usize {
    format.groups_together() * format.group / 16
}

/// Returns the number of vectors of upper bits at the beginning of a group's integers.
pub(super) fn upper_vectors(format: Grouped) -> usize {
    format.bits.upper() * format.group / 32
}

pub(super) fn set_scale_and_minimum(record: &mut [u8], row: usize, scale: f16, minimum: f16) {
    record[2 * row..][..2].copy_from_slice(&scale.to_le_bytes());
    record[MINIMUMS + 2 * row..][..2].copy_from_slice(&minimum.to_le_bytes());
}

/// Returns the integer of input `k` of the record and row `row` of its 16 rows.
///
/// # Panics
/// Panics if the record has no such row or input.
pub fn integer(format: Grouped, record: &[u8], row: usize, k: usize) -> i32 {
    assert!(row < ROWS && k < format.record_inputs(), "row {row}, input {k} of {format:?}");
    let (group, k) = (k / format.group, k % format.group);
    let integers = &record[integers_at(format, group)..];
    let dword = |vector: usize| vector * VECTOR_BYTES + 4 * row;
    match format.bits {
        Bits::Four => {
            // Even inputs are in the low half of the dword, odd ones in the high half.
            let nibble = k % 8 / 2 + k % 2 * 4;
            i32::from(integers[dword(k / 8) + nibble / 2] >> (nibble % 2 * 4) & 15)
        }
        Bits::Eight => i32::from(i8::from_le_bytes([integers[dword(k / 4) + k % 4]])),
        Bits::Table(table) if table.index_bits() < 4 => {
            let step = first_step(format, group) + k / 4;
            let mut code = integers[dword(step / 4) + k % 4] >> (step % 4 * 2) & 3;
            if table.index_bits() == 3 {
                code |= (integers[dword(third_vector(format)) + k % 4] >> step & 1) << 2;
            }
            i32::from(table.values()[usize::from(code)])
        }
        bits => {
            let (step, upper) = (k / 4, bits.upper());
            let nibbles = integers[dword(upper_vectors(format) + step / 2) + k % 4];
            let mut code = nibbles >> (step % 2 * 4) & 15;
            if let Some(steps) = 8usize.checked_div(upper) {
                let byte = integers[dword(step / steps) + k % 4];
                code |= (byte >> (step % steps * upper) & ((1 << upper) - 1)) << 4;
            }
            match bits {
                Bits::Table(table) => i32::from(table.values()[usize::from(code)]),
                _ => i32::from(code) - i32::from(bits.offset()),
            }
        }
    }
}

/// Stores the codes of a row's integers, given one per byte, in group `group` of a record.
#[inline(always)]
pub(super) fn store(format: Grouped, record: &mut [u8], row: usize, group: usize, q: &[u8]) {
    let at = integers_at(format, group) + 4 * row;
    match format.bits {
        Bits::Four => {
            for (vector, eight) in q.as_chunks::<8>().0.iter().enumerate() {
                let dword = pack_nibbles(u64::from_le_bytes(*eight));
                record[at + vector * VECTOR_BYTES..][..4].copy_from_slice(&dword.to_le_bytes());
            }
        }
        Bits::Eight => {
            for (vector, four) in q.as_chunks::<4>().0.iter().enumerate() {
                record[at + vector * VECTOR_BYTES..][..4].copy_from_slice(four);
            }
        }
        Bits::Table(table) if table.index_bits() < 4 => {
            let first = first_step(format, group);
            let mut dwords = [0u32; 2];
            let mut third = 0;
            for (step, four) in q.as_chunks::<4>().0.iter().enumerate() {
                let four = u32::from_le_bytes(*four);
                dwords[step / 4] |= (four & 0x0303_0303) << (step % 4 * 2);
                third |= (four >> 2 & 0x0101_0101) << (first + step);
            }
            let mut put = |vector: usize, mask: u32, dword: u32| {
                let to = &mut record[at + vector * VECTOR_BYTES..][..4];
                let old = u32::from_le_bytes([to[0], to[1], to[2], to[3]]);
                to.copy_from_slice(&(old & !mask | dword).to_le_bytes());
            };
            for (vector, dword) in dwords.iter().enumerate().take(q.len() / 16) {
                put(first / 4 + vector, u32::MAX, *dword);
            }
            if table.index_bits() == 3 {
                // The other group's bits stay.
                let steps = ((1u32 << (q.len() / 4)) - 1) << first;
                put(third_vector(format), steps * 0x0101_0101, third);
            }
        }
        bits => {
            let mut upper_dwords = [0u32; 4];
            let first = upper_vectors(format);
            for (vector, eight) in q.as_chunks::<8>().0.iter().enumerate() {
                let mut nibbles = 0;
                for (half, four) in eight.as_chunks::<4>().0.iter().enumerate() {
                    let (four, step) = (u32::from_le_bytes(*four), 2 * vector + half);
                    nibbles |= (four & 0x0f0f_0f0f) << (4 * half);
                    if let Some(steps) = 8usize.checked_div(bits.upper()) {
                        let upper = four >> 4 & 0x0f0f_0f0f;
                        upper_dwords[step / steps] |= upper << (step % steps * bits.upper());
                    }
                }
                let at = at + (first + vector) * VECTOR_BYTES;
                record[at..at + 4].copy_from_slice(&nibbles.to_le_bytes());
            }
            for (vector, dword) in upper_dwords.iter().enumerate().take(first) {
                record[at + vector * VECTOR_BYTES..][..4].copy_from_slice(&dword.to_le_bytes());
            }
        }
    }
}

/// Packs eight integers below 16, one in each byte, into a dword of a record.
#[inline(always)]
fn pack_nibbles(bytes: u64) -> u32 {
    // Bytes 0, 2, 4, 6 are in 16-bit fields, which are gathered into pairs, then into one half of
    // the dword.
    let gather = |fields: u64| {
        let pairs = (fields | fields >> 12) & 0x0000_00ff_0000_00ff;
        (pairs | pairs >> 24) as u32 & 0xffff
    };
    let low = 0x000f_000f_000f_000f;
    gather(bytes & low) | gather(bytes >> 8 & low) << 16
}

/// Decodes row `row` of a grouped matrix of `k` inputs to f32: the exact values that every kernel
/// computes with.
///
/// # Panics
/// Panics if `out` is not one row or the matrix has no such row.
pub fn decode_row(format: Grouped, matrix: &[u8], k: usize, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), k, "the output is not one row");
    let block = &matrix[row / ROWS * format.block_bytes(k)..][..format.block_bytes(k)];
    let lane = row % ROWS;
    let records = block.chunks_exact(format.record_bytes());
    for (record, out) in records.zip(out.chunks_mut(format.record_inputs())) {
        for (group, out) in out.chunks_mut(format.group).enumerate() {
            let (scale, minimum) = range(format, record, lane, group);
            for (k, out) in out.iter_mut().enumerate() {
                let q = integer(format, record, lane, group * format.group + k);
                *out = scale * q as f32 + minimum;
            }
        }
    }
}
