//! Grouped matrices of any format for tests: random records, and their values according to the
//! plain reader.

use kernels::quant::{integer, range};
use model::quantized_format::{Bits, Grouped, ROWS, ScaleLayout};

use super::Random;

/// Returns every format that is stored or that a device widens one to, once each.
pub fn formats() -> Vec<Grouped> {
    let mut formats = vec![Grouped::halves(Bits::Eight, 64)];
    for stored in Grouped::STORED {
        for format in [stored, stored.widened()] {
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
    }
    formats
}

/// Returns a matrix of random integers, whose scales are finite and of ordinary size.
pub fn random_records(random: &mut Random, format: Grouped, n: usize, k: usize) -> Vec<u8> {
    let mut records: Vec<u8> = (0..format.size_bytes(n, k)).map(|_| random.bits() as u8).collect();
    for record in records.chunks_mut(format.record_bytes()) {
        // The high byte of each number: its sign, and an exponent for values around one.
        let (numbers, width, keep, set) = match format.scales {
            ScaleLayout::Halves
            | ScaleLayout::ProductsAndMinimums
            | ScaleLayout::HalfByteProducts
            | ScaleLayout::HalfScales => (2 * ROWS, 2, 0x83, 0x2c),
            ScaleLayout::Products => (ROWS, 2, 0x83, 0x20),
            ScaleLayout::SuperScales => (ROWS, 2, 0x83, 0x2c),
            ScaleLayout::Floats => (2 * ROWS, 4, 0x80, 0x3d),
            ScaleLayout::FloatProducts => (ROWS, 4, 0x80, 0x3c),
            ScaleLayout::PowersOfTwo => (4 * ROWS, 1, 0x03, 0xf8),
        };
        for high in record[..numbers * width].iter_mut().skip(width - 1).step_by(width) {
            *high = *high & keep | set;
        }
        if format.scales == ScaleLayout::FloatProducts {
            // 8-bit floats are finite and not negative, also those below the least normal one.
            for byte in &mut record[4 * ROWS..format.scales.size_bytes(format.group)] {
                *byte = (*byte & 0x7f).min(0x7e);
            }
        }
    }
    records
}

/// Decoded records of a matrix `[n, k]`.
pub struct Said {
    /// `[n, k]`.
    pub q: Vec<i8>,
    /// Scale and minimum by row and group.
    pub ranges: Vec<(f32, f32)>,
}

pub fn said(format: Grouped, records: &[u8], n: usize, k: usize) -> Said {
    let mut said = Said { q: Vec::new(), ranges: Vec::new() };
    let in_record = format.scales.groups(format.group);
    for row in 0..n {
        let record = |index: usize| {
            let index = row / ROWS * format.records(k) + index;
            &records[index * format.record_bytes()..][..format.record_bytes()]
        };
        for at in 0..k {
            let (index, at) = (at / format.record_inputs(), at % format.record_inputs());
            said.q.push(integer(format, record(index), row % ROWS, at) as i8);
        }
        for group in 0..format.groups(k) {
            let record = record(group / in_record);
            said.ranges.push(range(format, record, row % ROWS, group % in_record));
        }
    }
    said
}
