//! Tests of the formats of GGUF's types: lossless repacking, the position of each byte, sizes,
//! widening to 8 bits, and quantisation of random weights.

use crate::common::records::{random_records, said};
use crate::common::{Random, bits, variants};
use half::f16;
use kernels::Variant;
use kernels::quant::{decode_row, from_blocks, integer, quantise, range, widen};
use model::quantized_format::{Bits, Codebook, Grouped, ROWS, ScaleLayout};
use model::source::StoredType;
use model::source::gguf::expand;

/// GGML's numbers of the types that have a grouped format.
const TYPES: [(u32, StoredType); 22] = [
    (2, StoredType::Q4_0),
    (3, StoredType::Q4_1),
    (6, StoredType::Q5_0),
    (7, StoredType::Q5_1),
    (8, StoredType::Q8_0),
    (12, StoredType::Q4K),
    (13, StoredType::Q5K),
    (14, StoredType::Q6K),
    (20, StoredType::Iq4Nl),
    (23, StoredType::Iq4Xs),
    (39, StoredType::Mxfp4),
    (10, StoredType::Q2K),
    (11, StoredType::Q3K),
    (16, StoredType::Iq2Xxs),
    (17, StoredType::Iq2Xs),
    (22, StoredType::Iq2S),
    (18, StoredType::Iq3Xxs),
    (21, StoredType::Iq3S),
    (19, StoredType::Iq1S),
    (29, StoredType::Iq1M),
    (34, StoredType::Tq1),
    (35, StoredType::Tq2),
];

/// Blocks of a type, and the values that the `gguf` package decodes them to.
struct Fixture {
    stored: StoredType,
    blocks: Vec<u8>,
    values: Vec<f32>,
}

/// Returns the fixtures of `scripts/fixtures_gguf_quants.py`, for the types that have a grouped
/// format.
fn fixtures() -> Vec<Fixture> {
    let mut file: &[u8] = include_bytes!("../../../model/tests/fixtures/gguf_quants.bin");
    let mut fixtures = Vec::new();
    while !file.is_empty() {
        let (head, rest) = file.split_at(16);
        let number = |index: usize| {
            u32::from_le_bytes(head[4 * index..][..4].try_into().expect("four bytes"))
        };
        let (count, size, elements) = (number(1) as usize, number(2) as usize, number(3) as usize);
        let (blocks, rest) = rest.split_at(count * size);
        let (values, rest) = rest.split_at(4 * count * elements);
        file = rest;
        let Some((_, stored)) = TYPES.into_iter().find(|(code, _)| *code == number(0)) else {
            continue;
        };
        let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let values = values.chunks_exact(4).map(value).collect();
        fixtures.push(Fixture { stored, blocks: blocks.to_vec(), values });
    }
    fixtures
}

/// Returns a matrix row by row, with zeros without a sign.
fn decoded(format: Grouped, records: &[u8], rows: usize, k: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * k];
    for (row, out) in out.chunks_exact_mut(k).enumerate() {
        decode_row(format, records, k, row, out);
    }
    unsigned(&out)
}

fn unsigned(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| value + 0.0).collect()
}

#[test]
fn every_type_keeps_the_values_of_another_reader() {
    let fixtures = fixtures();
    let seen: Vec<StoredType> = fixtures.iter().map(|fixture| fixture.stored).collect();
    assert!(TYPES.iter().all(|(_, stored)| seen.contains(stored)), "{seen:?}");
    for Fixture { stored, blocks, values } in fixtures {
        let format = stored.grouped().expect("a form");
        // Rows of one block, of some, of an odd number of them, one row, and more than one block of
        // rows.
        for row_blocks in [1, 2, 3, 4, 8] {
            let (elements, block_bytes) = stored.block();
            let k = row_blocks * elements;
            for repeats in [1, 9] {
                let rows = values.len() / k;
                let blocks = blocks[..rows * row_blocks * block_bytes].repeat(repeats);
                let values = values[..rows * k].repeat(repeats);
                let rows = rows * repeats;
                let repacked = |fill: u8| {
                    let mut records = vec![fill; format.size_bytes(rows, k)];
                    from_blocks(stored, &blocks, k, &mut records).expect("ordinary scales");
                    records
                };
                let records = repacked(0xff);
                let context = format!("{stored:?} {rows} x {k}");
                assert!(records == repacked(0), "{context}: not written whole");
                let actual = decoded(format, &records, rows, k);
                assert_eq!(bits(&actual), bits(&unsigned(&values)), "{context}");
            }
        }
    }
}

#[test]
fn no_form_is_much_larger_than_its_file() {
    for (_, stored) in TYPES {
        let format = stored.grouped().expect("a form");
        for (n, k) in [(16, 256), (4096, 4096), (14336, 4096), (128, 1536)] {
            let file_bytes = n * stored.row_bytes(k);
            let share = format.size_bytes(n, k) as f64 / file_bytes as f64;
            // Q4_0 and Q8_0 have a minimum that the file does not have.
            let most = match stored {
                StoredType::Q4_0 => 320.0 / 288.0,
                StoredType::Q8_0 => 576.0 / 544.0,
                // Scales of a byte each instead of six bits.
                StoredType::Q3K => 1.06,
                // Entries of grids, or digits to the base of three, become codes of whole bits.
                StoredType::Tq1 => 1.26,
                StoredType::Iq3S => 1.28,
                StoredType::Iq2S => 1.42,
                StoredType::Iq3Xxs => 1.43,
                StoredType::Iq2Xs => 1.57,
                StoredType::Iq2Xxs => 1.64,
                StoredType::Iq1M => 2.08,
                StoredType::Iq1S => 2.16,
                _ => 1.05,
            };
            assert!(share <= most, "{stored:?} {n} x {k}: {share}");
            assert!(share >= 1.0, "{stored:?} {n} x {k}: {share}");
        }
    }
}

/// Returns the integer of input `at` of a group, or of groups that are stored together, according
/// to the written description.
fn described_integer(format: Grouped, group: &[u8], row: usize, at: usize) -> i32 {
    let dword = |vector: usize| {
        let at = 64 * vector + 4 * row;
        u32::from_le_bytes(group[at..at + 4].try_into().expect("four bytes"))
    };
    let (step, byte) = (at / 4, at % 4);
    let lower = |first: usize| dword(first + at / 8) >> (8 * byte + 4 * (step % 2)) & 15;
    match format.bits {
        Bits::Four => {
            let place = at % 8 / 2 + at % 2 * 4;
            (dword(at / 8) >> (4 * place) & 15) as i32
        }
        Bits::Eight => i32::from((dword(step) >> (8 * byte)) as u8 as i8),
        Bits::Five | Bits::FiveSigned => {
            let fifth = dword(0) >> (8 * byte + step) & 1;
            let offset = if format.bits == Bits::Five { 0 } else { 16 };
            (lower(1) + 16 * fifth) as i32 - offset
        }
        Bits::SixSigned => {
            let upper = dword(0) >> (8 * byte + 2 * step) & 3;
            (lower(1) + 16 * upper) as i32 - 32
        }
        Bits::Table(table) => {
            let two_bits = || dword(at / 16) >> (8 * byte + 2 * (step % 4)) & 3;
            let code = match table.index_bits() {
                2 => two_bits(),
                3 => two_bits() + 4 * (dword(2) >> (8 * byte + step) & 1),
                _ => lower(0),
            };
            i32::from(table.values()[code as usize])
        }
    }
}

/// Returns scale and minimum of a group of a record, according to the written description.
fn described_range(format: Grouped, record: &[u8], row: usize, group: usize) -> (f32, f32) {
    let half = |at: usize| f16::from_le_bytes([record[at], record[at + 1]]).to_f32();
    let byte = |at: usize| f32::from(record[at] as i8);
    match format.scales {
        ScaleLayout::Halves => (half(2 * row), half(32 + 2 * row)),
        ScaleLayout::HalfScales => (half(32 * group + 2 * row), 0.0),
        ScaleLayout::Floats => {
            let at = |at: usize| f32::from_le_bytes(record[at..at + 4].try_into().expect("four"));
            (at(4 * row), at(64 + 4 * row))
        }
        ScaleLayout::PowersOfTwo => (2f32.powi(i32::from(record[16 * group + row] as i8)), 0.0),
        ScaleLayout::Products => {
            let unit = match format.bits {
                Bits::Table(Codebook::Iq1 | Codebook::Iq2) => 0.125,
                Bits::Table(Codebook::Iq3Xxs) => 0.25,
                _ => 1.0,
            };
            (half(2 * row) * byte(32 + 16 * group + row) * unit, 0.0)
        }
        ScaleLayout::ProductsAndMinimums => {
            let at = 64 + 32 * group + row;
            (half(2 * row) * byte(at), half(32 + 2 * row) * byte(at + 16))
        }
        ScaleLayout::HalfByteProducts => {
            let both = record[64 + 16 * group + row];
            (
                half(2 * row) * f32::from(both % 16),
                half(32 + 2 * row) * (0.0 - f32::from(both / 16)),
            )
        }
        ScaleLayout::SuperScales => (half(2 * row), 0.0),
        ScaleLayout::FloatProducts => {
            let factor = f32::from_le_bytes(record[4 * row..][..4].try_into().expect("four"));
            let float = record[64 + 16 * group + row];
            let (exponent, mantissa) = (i32::from(float >> 3), f32::from(float & 7) / 8.0);
            let value = match exponent {
                0 => mantissa * 2f32.powi(-6),
                _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
            };
            (factor * value, 0.0)
        }
    }
}

#[test]
fn nvfp4_keeps_the_values_of_its_floats() {
    let stored = StoredType::Nvfp4;
    let mut random = Random::new(11);
    for (rows, k) in [(1, 16), (16, 256), (35, 656)] {
        let mut blocks: Vec<u8> =
            (0..rows * stored.row_bytes(k)).map(|_| random.bits() as u8).collect();
        for row in blocks.chunks_mut(stored.row_bytes(k)) {
            for block in row.chunks_mut(stored.block().1) {
                block[..4].copy_from_slice(&1.7e-3f32.to_le_bytes());
                block[4] = (block[4] & 0x7f).min(0x7e);
            }
        }
        let mut expected = vec![0.0; rows * k];
        expand(stored, &blocks, &mut expected);
        let mut records = vec![0xff; Grouped::NVFP4.size_bytes(rows, k)];
        from_blocks(stored, &blocks, k, &mut records).expect("ordinary factors");
        let actual = decoded(Grouped::NVFP4, &records, rows, k);
        assert_eq!(bits(&actual), bits(&unsigned(&expected)), "{rows} x {k}");
        for factor in [0x7f, 0x80, 0xff] {
            let last = blocks.len() - stored.block().1;
            blocks[last + 4] = factor;
            let refused = from_blocks(stored, &blocks, k, &mut records).expect_err("refused");
            let place = format!("row {}, group {}", rows - 1, k / 16 - 1);
            assert!(refused.to_string().contains(&place), "{refused}");
        }
    }
}

#[test]
fn a_record_keeps_everything_where_the_format_says() {
    let mut random = Random::new(3);
    for format in crate::common::records::formats() {
        let record = random_records(&mut random, format, ROWS, format.record_inputs());
        assert_eq!(record.len(), format.record_bytes());
        let head = format.scales.size_bytes(format.group);
        let inputs = format.groups_together() * format.group;
        let bytes = format.groups_together() * format.group_bytes();
        for (index, integers) in record[head..].chunks_exact(bytes).enumerate() {
            for row in 0..ROWS {
                for at in 0..inputs {
                    let input = index * inputs + at;
                    let group = input / format.group;
                    let expected = described_range(format, &record, row, group);
                    assert_eq!(range(format, &record, row, group), expected, "{format:?}");
                    let expected = described_integer(format, integers, row, at);
                    let context = format!("{format:?} row {row} input {input}");
                    assert_eq!(integer(format, &record, row, input), expected, "{context}");
                }
            }
        }
    }
}

#[test]
fn widening_keeps_scales_minimums_and_integers_in_every_variant() {
    let mut random = Random::new(4);
    for format in Grouped::STORED.into_iter().filter(|format| format.bits != Bits::Eight) {
        for (n, k) in [(16, 512), (33, 330), (5, 32)] {
            let records = random_records(&mut random, format, n, k);
            let narrow = said(format, &records, n, k);
            for variant in variants("widening_keeps_scales_minimums_and_integers") {
                let wide = format.widened();
                let mut out = vec![0xaa; wide.size_bytes(n, k)];
                widen(variant, format, k, &records, &mut out);
                let said = said(wide, &out, n, k);
                assert!(said.q == narrow.q, "{format:?} {variant:?}");
                let same =
                    said.ranges.iter().zip(&narrow.ranges).all(|(a, b)| {
                        (a.0.to_bits(), a.1.to_bits()) == (b.0.to_bits(), b.1.to_bits())
                    });
                assert!(same, "{format:?} {variant:?}");
            }
        }
    }
}

/// Random weights substitute for a file's in profiles, so they must have its format.
#[test]
fn random_weights_are_near_what_they_are_quantised_to() {
    let mut random = Random::new(5);
    for format in Grouped::STORED {
        let (n, k) = (21, 416);
        let weights: Vec<f32> = random.vector(n * k);
        let mut records = vec![0xff; format.size_bytes(n, k)];
        quantise(Variant::best(), format, &weights, k, &mut records);
        let said = said(format, &records, n, k);
        let values = decoded(format, &records, n, k);
        for (at, (value, weight)) in values.iter().zip(&weights).enumerate() {
            let (scale, _) = said.ranges[at / k * format.groups(k) + at % k / format.group];
            // A step of the integers, or the widest of a table, and the precision that scales lose.
            let step = match format.bits {
                Bits::Table(_) => 24.0 * scale,
                _ => scale,
            };
            let allowed = 0.6 * step + 0.05 * weight.abs() + 0.03;
            let context = format!("{format:?} {at}: {value} of {weight}");
            assert!((value - weight).abs() <= allowed, "{context}");
        }
        let (mut error, mut size) = (0.0, 0.0);
        for (value, weight) in values.iter().zip(&weights) {
            error += f64::from(value - weight).powi(2);
            size += f64::from(*weight).powi(2);
        }
        // Tables of few values are far from most weights.
        let share = match format.bits {
            Bits::Table(Codebook::Ternary) => 0.5,
            Bits::Table(Codebook::Unsigned) => 0.2,
            Bits::Table(Codebook::Signed) => 0.05,
            Bits::Table(Codebook::Iq1) => 0.12,
            Bits::Table(Codebook::Iq2) => 0.06,
            _ => 0.02,
        };
        assert!(error < share * size, "{format:?}: {}", error / size);
        let last = &records[records.len() - format.record_bytes()..];
        assert!(range(format, last, 15, 0).1 == 0.0, "{format:?}");
    }
}
