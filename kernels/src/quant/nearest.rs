//! Quantisation of rows of a weight matrix to the nearest integers in any stored format. It is used
//! for random weights that replace those of a file, so that they take the same bytes and the same
//! time.

use half::f16;
use model::quantized_format::{Bits, Grouped, ROWS, SUPER_BLOCK, ScaleLayout};
use model::source::float8::{E4M3_MAX, e4m3, nearest_e4m3};

use super::record::{range, store};

/// Largest finite f16.
const LARGEST: f32 = 65504.0;
/// Largest byte by which a factor of scales or minimums is multiplied.
const LARGEST_BYTE: f32 = 127.0;
/// Maximum number of groups in a record.
const GROUPS: usize = SUPER_BLOCK / 16;

/// Scale and minimum of a group.
type Range = (f32, f32);

/// Quantises a matrix of `rows` rows of `k` weights. `weight` returns a weight by its index.
///
/// # Panics
/// Panics if `format` is used only on devices.
pub(super) fn quantise_nearest(
    format: Grouped,
    weight: &dyn Fn(usize) -> f32,
    rows: usize,
    k: usize,
    out: &mut [u8],
) {
    out.fill(0);
    let inputs = format.record_inputs();
    for (block, records) in out.chunks_exact_mut(format.block_bytes(k)).enumerate() {
        for (index, record) in records.chunks_exact_mut(format.record_bytes()).enumerate() {
            let count = inputs.min(k - index * inputs);
            for row in 0..ROWS.min(rows - block * ROWS) {
                let first = (block * ROWS + row) * k + index * inputs;
                let finite = |at: usize| {
                    let value = weight(first + at);
                    if value.is_nan() { 0.0 } else { value.clamp(-LARGEST, LARGEST) }
                };
                let mut values = [0.0; SUPER_BLOCK];
                for (at, value) in values.iter_mut().enumerate().take(count) {
                    *value = finite(at);
                }
                quantise_record(format, record, row, &values[..count]);
            }
        }
    }
}

/// Writes row `row` of a record. Inputs after `values` become zeros.
fn quantise_record(format: Grouped, record: &mut [u8], row: usize, values: &[f32]) {
    let mut ranges = [(0.0, 0.0); GROUPS];
    for (range, values) in ranges.iter_mut().zip(values.chunks(format.group)) {
        *range = range_of(format, values);
    }
    set_ranges(format, record, row, &ranges[..values.len().div_ceil(format.group)]);
    for (group, values) in values.chunks(format.group).enumerate() {
        let (scale, minimum) = range(format, record, row, group);
        let mut kept = [0; 64];
        for (kept, value) in kept.iter_mut().zip(values) {
            *kept = nearest(format.bits, scale, minimum, *value);
        }
        store(format, record, row, group, &kept[..format.group]);
    }
}

/// Returns the scale and minimum that represent `values` best.
fn range_of(format: Grouped, values: &[f32]) -> Range {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let above = values.iter().fold(0.0f32, |above, value| above.max(*value));
    let below = values.iter().fold(0.0f32, |below, value| below.min(*value));
    match format.bits {
        Bits::Four => ((above - below) / 15.0, below),
        Bits::Five => ((above - below) / 31.0, below),
        Bits::FiveSigned => (largest / 15.0, 0.0),
        Bits::SixSigned => (largest / 31.0, 0.0),
        Bits::Eight => (largest / 127.0, 0.0),
        Bits::Table(table) => {
            let values = table.values();
            let above_zero = values.into_iter().max().unwrap_or(1);
            let below_zero = values.into_iter().min().unwrap_or(-1).saturating_neg();
            let both_ways = if below_zero > 0 { above_zero.min(below_zero) } else { above_zero };
            let most = f32::from(both_ways) * table.unit();
            if format.scales.has_minimums() {
                ((above - below) / most, below)
            } else {
                (largest / most, 0.0)
            }
        }
    }
}

/// Writes the scales and minimums of a row, rounded to what the format can store.
fn set_ranges(format: Grouped, record: &mut [u8], row: usize, ranges: &[Range]) {
    let half = |value: f32| f16::from_f32(value.clamp(-LARGEST, LARGEST));
    // An f16 factor, and the multiple of it that is nearest to a number.
    let factor = |largest: f32| half(largest / LARGEST_BYTE);
    let multiple = |value: f32, factor: f16| match factor.to_f32() {
        0.0 => 0,
        factor => (value / factor).round().clamp(-LARGEST_BYTE, LARGEST_BYTE) as i8,
    };
    let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
    match format.scales {
        ScaleLayout::Halves => {
            put(2 * row, &half(ranges[0].0).to_le_bytes());
            put(2 * (ROWS + row), &half(ranges[0].1).to_le_bytes());
        }
        ScaleLayout::HalfScales => {
            for (group, (scale, _)) in ranges.iter().enumerate() {
                put(2 * (group * ROWS + row), &half(*scale).to_le_bytes());
            }
        }
        ScaleLayout::PowersOfTwo => {
            for (group, (scale, _)) in ranges.iter().enumerate() {
                let power = scale.log2().ceil().clamp(-128.0, 127.0) as i8;
                put(group * ROWS + row, &power.to_le_bytes());
            }
        }
        ScaleLayout::Products | ScaleLayout::ProductsAndMinimums => {
            let scale = factor(ranges.iter().fold(0.0, |most, range| most.max(range.0)));
            put(2 * row, &scale.to_le_bytes());
            if format.scales == ScaleLayout::Products {
                for (group, range) in ranges.iter().enumerate() {
                    let at = 2 * ROWS + group * ROWS + row;
                    put(at, &multiple(range.0, scale).to_le_bytes());
                }
                return;
            }
            let minimum = factor(-ranges.iter().fold(0.0f32, |least, range| least.min(range.1)));
            put(2 * (ROWS + row), &minimum.to_le_bytes());
            for (group, range) in ranges.iter().enumerate() {
                let at = 4 * ROWS + group * 2 * ROWS + row;
                put(at, &multiple(range.0, scale).to_le_bytes());
                put(at + ROWS, &multiple(range.1, minimum).to_le_bytes());
            }
        }
        ScaleLayout::HalfByteProducts => {
            let factor = |largest: f32| half(largest / 15.0);
            let multiple = |value: f32, factor: f16| match factor.to_f32() {
                0.0 => 0,
                factor => (value / factor).round().clamp(0.0, 15.0) as u8,
            };
            let scale = factor(ranges.iter().fold(0.0, |most, range| most.max(range.0)));
            let minimum = factor(ranges.iter().fold(0.0, |most, range| most.max(-range.1)));
            put(2 * row, &scale.to_le_bytes());
            put(2 * (ROWS + row), &minimum.to_le_bytes());
            for (group, range) in ranges.iter().enumerate() {
                let both = multiple(range.0, scale) | multiple(-range.1, minimum) << 4;
                put(4 * ROWS + group * ROWS + row, &[both]);
            }
        }
        ScaleLayout::SuperScales => {
            let scale = ranges.iter().fold(0.0f32, |most, range| most.max(range.0));
            put(2 * row, &half(scale).to_le_bytes());
        }
        ScaleLayout::FloatProducts => set_float_products(record, row, ranges),
        ScaleLayout::Floats => panic!("{format:?} is no form to quantise to"),
    }
}

/// Writes an f32, and the 8-bit floats whose products with it are nearest to scales.
fn set_float_products(record: &mut [u8], row: usize, ranges: &[Range]) {
    let factor = ranges.iter().fold(0.0f32, |most, range| most.max(range.0)) / e4m3(E4M3_MAX);
    record[4 * row..][..4].copy_from_slice(&factor.to_le_bytes());
    for (group, (scale, _)) in ranges.iter().enumerate() {
        let times = if factor > 0.0 { scale / factor } else { 0.0 };
        record[4 * ROWS + group * ROWS + row] = nearest_e4m3(times);
    }
}

/// Returns the stored code of the integer that is nearest to a value.
fn nearest(bits: Bits, scale: f32, minimum: f32, value: f32) -> u8 {
    let steps = if scale == 0.0 { 0.0 } else { (value - minimum) / scale };
    let integer = |least: f32, most: f32| steps.round().clamp(least, most) as i32;
    match bits {
        Bits::Four => integer(0.0, 15.0) as u8,
        Bits::Five => integer(0.0, 31.0) as u8,
        Bits::FiveSigned => (integer(-16.0, 15.0) + i32::from(bits.offset())) as u8,
        Bits::SixSigned => (integer(-32.0, 31.0) + i32::from(bits.offset())) as u8,
        Bits::Eight => integer(-128.0, 127.0) as u8,
        Bits::Table(table) => {
            let values = table.values();
            let distance = |index: &u8| (f32::from(values[usize::from(*index)]) - steps).abs();
            let nearer = |a: &u8, b: &u8| distance(a).total_cmp(&distance(b));
            (0..1 << table.index_bits()).min_by(nearer).unwrap_or(0)
        }
    }
}
