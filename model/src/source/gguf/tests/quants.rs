//! Tests of the quantised types: against a second, naive implementation of the formats, against
//! values computed by the `gguf` Python package, and as raw blocks.

use half::f16;

use super::*;
use crate::ops::Op;
use crate::source::TensorPart;

/// Returns random bytes that are a function of the seed.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(step).collect()
}

fn put(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

fn at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Returns bit `index` of a bit string.
fn bit(bytes: &[u8], index: usize) -> u32 {
    u32::from(bytes[index / 8]) >> (index % 8) & 1
}

/// Returns `count` bits, starting at bit `first`.
fn field(bytes: &[u8], first: usize, count: usize) -> u32 {
    (0..count).map(|i| bit(bytes, first + i) << i).sum()
}

const NON_LINEAR: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Computes element `e` of a block bit by bit from the description of the format.
fn naive(stored: StoredType, b: &[u8], e: usize) -> f32 {
    // Index of the first of the four bits of element e in a block of 32.
    let nibble = |e: usize| e % 16 * 8 + e / 16 * 4;
    // Index of the first bit in Q4_K and Q5_K, with 64 elements per 32 bytes.
    let k_nibble = |e: usize| e / 64 * 256 + e % 32 * 8 + e / 32 % 2 * 4;
    let six = |packed: &[u8], part: usize| {
        let (scale, minimum) = match part {
            0..4 => (field(packed, part * 8, 6), field(packed, (part + 4) * 8, 6)),
            _ => (
                field(packed, (part + 4) * 8, 4) + 16 * field(packed, (part - 4) * 8 + 6, 2),
                field(packed, (part + 4) * 8 + 4, 4) + 16 * field(packed, part * 8 + 6, 2),
            ),
        };
        (scale as f32, minimum as f32)
    };
    match stored {
        StoredType::Q4_0 => at(b, 0) * (field(&b[2..], nibble(e), 4) as f32 - 8.0),
        StoredType::Q4_1 => at(b, 0) * field(&b[4..], nibble(e), 4) as f32 + at(b, 2),
        StoredType::Q5_0 => {
            let q = field(&b[6..], nibble(e), 4) + 16 * bit(&b[2..], e);
            at(b, 0) * (q as f32 - 16.0)
        }
        StoredType::Q5_1 => {
            let q = field(&b[8..], nibble(e), 4) + 16 * bit(&b[4..], e);
            at(b, 0) * q as f32 + at(b, 2)
        }
        StoredType::Q8_0 => at(b, 0) * f32::from(b[2 + e] as i8),
        StoredType::Q4K => {
            let (scale, minimum) = six(&b[4..], e / 32);
            let q = field(&b[16..], k_nibble(e), 4);
            at(b, 0) * scale * q as f32 - at(b, 2) * minimum
        }
        StoredType::Q5K => {
            let (scale, minimum) = six(&b[4..], e / 32);
            let q = field(&b[48..], k_nibble(e), 4) + 16 * bit(&b[16..], e % 32 * 8 + e / 32);
            at(b, 0) * scale * q as f32 - at(b, 2) * minimum
        }
        StoredType::Q6K => {
            let (half, quarter, lane) = (e / 128, e % 128 / 32, e % 32);
            let low = half * 512 + (quarter % 2 * 32 + lane) * 8 + quarter / 2 * 4;
            let upper = half * 256 + lane * 8 + quarter * 2;
            let q = field(b, low, 4) + 16 * field(&b[128..], upper, 2);
            at(b, 208) * f32::from(b[192 + e / 16] as i8) * (q as f32 - 32.0)
        }
        other => naive_small(other, b, e),
    }
}

/// Computes elements of the types with fewer than four bits or with tables.
fn naive_small(stored: StoredType, b: &[u8], e: usize) -> f32 {
    let nibble = |e: usize| e % 16 * 8 + e / 16 * 4;
    // Index of the first of the two bits of element e in Q2_K and Q3_K, with 128 elements per 32
    // bytes.
    let k_pair = |e: usize| e / 128 * 256 + e % 32 * 8 + e % 128 / 32 * 2;
    match stored {
        StoredType::Q2K => {
            let (step, offset) = (field(b, e / 16 * 8, 4), field(b, e / 16 * 8 + 4, 4));
            let q = field(&b[16..], k_pair(e), 2);
            at(b, 80) * step as f32 * q as f32 - at(b, 82) * offset as f32
        }
        StoredType::Q3K => {
            let (part, lane) = (e / 16, e % 32 * 8 + e / 32);
            let low = field(&b[96..], part % 8 * 8 + part / 8 * 4, 4);
            let step = low + 16 * field(&b[104..], part % 4 * 8 + part / 4 * 2, 2);
            let q = field(&b[32..], k_pair(e), 2) + 4 * bit(b, lane);
            at(b, 108) * (step as f32 - 32.0) * (q as f32 - 4.0)
        }
        StoredType::Tq2 => at(b, 64) * (field(b, k_pair(e), 2) as f32 - 1.0),
        StoredType::Iq4Nl => at(b, 0) * NON_LINEAR[field(&b[2..], nibble(e), 4) as usize],
        StoredType::Iq4Xs => {
            let part = e / 32;
            let step = field(&b[4..], part * 4, 4) + 16 * field(&b[2..], part * 2, 2);
            let q = field(&b[8 + part * 16..], nibble(e % 32), 4);
            at(b, 0) * (step as f32 - 32.0) * NON_LINEAR[q as usize]
        }
        StoredType::Mxfp4 => {
            let q = field(&b[1..], nibble(e), 4);
            let (exponent, odd) = (q / 2 % 4, (q % 2) as f32);
            let size = match exponent {
                0 => odd / 2.0,
                _ => (1.0 + odd / 2.0) * 2f32.powi(exponent as i32 - 1),
            };
            let sign = if q >= 8 && size > 0.0 { -1.0 } else { 1.0 };
            sign * (f64::from(size) * 2f64.powi(i32::from(b[0]) - 127)) as f32
        }
        plain => unreachable!("{plain:?} has no blocks"),
    }
}

/// Returns the offsets of the f16 scale and minimum in a block.
fn factors(stored: StoredType) -> (Option<usize>, Option<usize>) {
    match stored {
        StoredType::Q4_1 | StoredType::Q5_1 | StoredType::Q4K | StoredType::Q5K => {
            (Some(0), Some(2))
        }
        StoredType::Q2K => (Some(80), Some(82)),
        StoredType::Q3K => (Some(108), None),
        StoredType::Tq2 => (Some(64), None),
        StoredType::Q6K => (Some(208), None),
        StoredType::Mxfp4 => (None, None),
        _ => (Some(0), None),
    }
}

/// Returns true for types that are only compared with another reader: a second implementation here
/// would share their grids.
fn has_grid_or_digits(stored: StoredType) -> bool {
    use StoredType::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Tq1};
    matches!(stored, Iq1M | Iq1S | Iq2S | Iq2Xs | Iq2Xxs | Iq3S | Iq3Xxs | Tq1)
}

fn quantised() -> impl Iterator<Item = StoredType> {
    let has_blocks = |stored: &StoredType| stored.block().0 > 1 && type_code(*stored).is_some();
    StoredType::ALL.into_iter().filter(has_blocks)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_type_is_what_its_format_says() {
    for stored in quantised().filter(|stored| !has_grid_or_digits(*stored)) {
        let (elements, bytes) = stored.block();
        let mut row = noise(5 * bytes, bytes as u64);
        for (index, block) in row.chunks_exact_mut(bytes).enumerate() {
            let (scale, minimum) = factors(stored);
            if let Some(place) = scale {
                put(block, place, [0.011, -0.7, 3e-7, 40.0, 0.0][index]);
            }
            if let Some(place) = minimum {
                put(block, place, [-0.09, 1.7, 2e-6, -900.0, 0.25][index]);
            }
            if stored == StoredType::Mxfp4 {
                block[0] = [127, 0, 1, 2, 240][index];
            }
        }
        let mut out = vec![f32::NAN; 5 * elements];
        dequantise(stored, &row, &mut out);
        let wanted = (0..out.len())
            .map(|e| naive(stored, &row[e / elements * bytes..][..bytes], e % elements));
        assert_eq!(bits(&out), bits(&wanted.collect::<Vec<_>>()), "{stored:?}");
    }
}

#[test]
fn a_q4_k_block_by_hand() {
    // Scale 0.5 and minimum scale 0.25; part 0 has 3 and 2, part 5 has 1 + 16 * 2 and 4 + 16 * 1.
    let mut block = vec![0u8; 144];
    put(&mut block, 0, 0.5);
    put(&mut block, 2, 0.25);
    block[4] = 3;
    block[8] = 2;
    block[13] = 1 | 4 << 4;
    block[5] = 2 << 6;
    block[9] = 1 << 6;
    block[16] = 7;
    block[16 + 64] = 9 << 4;
    let mut out = vec![f32::NAN; 256];
    dequantise(StoredType::Q4K, &block, &mut out);
    assert_eq!(out[0], 0.5 * 3.0 * 7.0 - 0.25 * 2.0);
    assert_eq!(out[1], -0.5);
    assert_eq!(out[160], 0.5 * 33.0 * 9.0 - 0.25 * 20.0);
    assert_eq!(out[161], -5.0);
    assert!(out[32..64].iter().all(|value| *value == 0.0));
}

#[test]
fn every_type_equals_another_reader() {
    let mut file: &[u8] = include_bytes!("../../../../tests/fixtures/gguf_quants.bin");
    let mut seen = Vec::new();
    while !file.is_empty() {
        let (head, rest) = file.split_at(16);
        let number = |index: usize| {
            u32::from_le_bytes(head[4 * index..][..4].try_into().expect("four bytes"))
        };
        let TensorType::Known(stored) = TensorType::from_code(number(0)) else {
            panic!("type number {} is not read", number(0));
        };
        let (count, size, elements) = (number(1) as usize, number(2) as usize, number(3) as usize);
        assert_eq!(stored.block(), (elements, size), "{stored:?}");
        let (row, rest) = rest.split_at(count * size);
        let (values, rest) = rest.split_at(4 * count * elements);
        let wanted: Vec<f32> = values
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
        let mut out = vec![f32::NAN; count * elements];
        dequantise(stored, row, &mut out);
        assert_eq!(bits(&out), bits(&wanted), "{stored:?}");
        seen.push(stored);
        file = rest;
    }
    assert_eq!(seen.len(), quantised().count());
}

#[test]
fn types_that_are_not_read_are_refused_by_name_with_what_to_use() {
    for (code, name) in [(9, "Q8_1"), (15, "Q8_K"), (28, "F64"), (40, "NVFP4")] {
        let mut writer = small_model("llama");
        writer.tensor("blk.0.ffn_gate.weight", &[FFN, HIDDEN], code, vec![0; 4096]);
        let error = refusal(&writer);
        for part in [name, "blk.0.ffn_gate.weight", "IQ4_XS", "Q4_K_M"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn raw_blocks_come_in_the_models_order_of_rows() {
    for (code, stored) in [
        (2, StoredType::Q4_0),
        (3, StoredType::Q4_1),
        (6, StoredType::Q5_0),
        (7, StoredType::Q5_1),
        (8, StoredType::Q8_0),
        (20, StoredType::Iq4Nl),
    ] {
        let mut writer = small_model("llama");
        let row_bytes = stored.row_bytes(HIDDEN);
        let mut data = noise(HEADS * HEAD_DIM * row_bytes, u64::from(code));
        for block in data.chunks_exact_mut(row_bytes) {
            put(block, 0, 0.5);
        }
        let gate = noise(FFN * row_bytes, 77);
        writer.tensor("blk.1.attn_q.weight", &[HEADS * HEAD_DIM, HIDDEN], code, data);
        writer.tensor("blk.0.ffn_gate.weight", &[FFN, HIDDEN], code, gate.clone());
        let source = open(&writer).expect("a good file");

        let id = TensorId::Layer { layer: 1, op: Op::Q, part: TensorPart::Matrix };
        assert_eq!(source.stored_type(id).expect("there"), stored);
        let plain = read_f32(&source, id);
        for (first, count) in [(0, HEADS * HEAD_DIM), (5, 1), (3, 14)] {
            let mut blocks = vec![0; count * row_bytes];
            source.read_blocks(id, first, &mut blocks).expect("readable");
            let mut out = vec![f32::NAN; count * HIDDEN];
            dequantise(stored, &blocks, &mut out);
            let wanted = &plain[first * HIDDEN..][..out.len()];
            assert_eq!(bits(&out), bits(wanted), "{stored:?}, rows {first} + {count}");
        }
        let id = TensorId::Layer { layer: 0, op: Op::Gate, part: TensorPart::Matrix };
        let mut blocks = vec![0; 3 * row_bytes];
        source.read_blocks(id, 60, &mut blocks).expect("readable");
        assert_eq!(blocks, gate[60 * row_bytes..63 * row_bytes]);
    }
}

#[test]
fn types_without_a_form_to_run_from_have_no_raw_blocks() {
    let source = open(&small_model("llama")).expect("a good file");
    let id = TensorId::Layer { layer: 0, op: Op::Up, part: TensorPart::Matrix };
    let error = source.read_blocks(id, 0, &mut [0; 128]).expect_err("F32").to_string();
    assert!(error.contains("ffn_up") && error.contains("F32"), "{error}");
}
