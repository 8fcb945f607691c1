//! Tests of the compressed formats: layout of a record, error bounds of the quantisers, identical
//! bytes from every variant and every partition, lossless widening and repacking.

use half::{bf16, f16};
use kernels::quant::{
    RepackError, decode_kv, decode_row, error_bound, from_blocks, integer, quantise, quantise_kv,
    scale_and_minimum, widen,
};
use kernels::{Element, Variant};
use model::quantized_format::{Grouped, KvRecordFormat};
use model::source::StoredType;

/// Reproducible pseudo-random words.
struct Noise(u64);

impl Noise {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let shifted = ((self.0 >> 18 ^ self.0) >> 27) as u32;
        shifted.rotate_right((self.0 >> 59) as u32)
    }

    /// Returns a roughly normally distributed number, mean 0 and deviation 1.
    fn normal(&mut self) -> f32 {
        let sum: u64 = (0..12).map(|_| u64::from(self.word() >> 8)).sum();
        sum as f32 / (1 << 24) as f32 - 6.0
    }
}

/// Returns groups that a model can have and some that it should not, `count` values of each kind.
fn kinds(count: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut noise = Noise(3);
    let mut kind = |name, mut value: Box<dyn FnMut(usize, f32) -> f32>| {
        (name, (0..count).map(|i| value(i, noise.normal())).collect::<Vec<_>>())
    };
    vec![
        kind("weights", Box::new(|_, x| x * 0.02)),
        kind("one outlier", Box::new(|i, x| if i % 97 == 5 { 300.0 } else { x * 0.02 })),
        kind("far from zero", Box::new(|_, x| 1000.25 + x * 0.01)),
        kind("far below zero", Box::new(|_, x| -7.77 + x * 1e-4)),
        kind("positive", Box::new(|_, x| x.abs() * 3.0)),
        kind("tiny range", Box::new(|_, x| x * 1e-7)),
        kind("tiny range far from zero", Box::new(|i, _| 1.0 + (i % 3) as f32 * f32::EPSILON)),
        kind("subnormal", Box::new(|i, x| f32::from_bits(i as u32 & 0xff) * x.signum())),
        kind("zeros of both signs", Box::new(|i, _| if i % 2 == 0 { 0.0 } else { -0.0 })),
        kind("constant", Box::new(|_, _| -0.3)),
        kind("two values", Box::new(|i, _| if i % 5 == 0 { -1.0 } else { 1.0 })),
        kind("whole range", Box::new(|i, _| if i % 2 == 0 { 65504.0 } else { -65504.0 })),
        kind("large", Box::new(|_, x| x * 10_000.0)),
    ]
}

/// Returns the value that the quantisers substitute for a value.
fn taken_for(value: f32) -> f32 {
    if value.is_nan() { 0.0 } else { value.clamp(-65504.0, 65504.0) }
}

fn quantised<T: Element>(format: Grouped, weights: &[T], k: usize) -> Vec<u8> {
    let mut out = vec![0xff; format.size_bytes(weights.len() / k, k)];
    quantise(Variant::best(), format, weights, k, &mut out);
    out
}

fn decoded(format: Grouped, matrix: &[u8], rows: usize, k: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * k];
    for (row, out) in out.chunks_exact_mut(k).enumerate() {
        decode_row(format, matrix, k, row, out);
    }
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the record of a row's group, and the row's place in it.
fn record(format: Grouped, matrix: &[u8], k: usize, row: usize, group: usize) -> (&[u8], usize) {
    let index = row / 16 * format.groups(k) + group;
    (&matrix[index * format.record_bytes()..][..format.record_bytes()], row % 16)
}

const FORMATS: [Grouped; 2] = [Grouped::W4, Grouped::GGUF_Q4];

#[test]
fn a_record_keeps_everything_where_the_format_says() {
    for format in FORMATS {
        // Every group has a 0 and a 15, so scales are 1, minimums 0 and integers the weights.
        let (rows, k) = (16, format.group);
        let q = |row: usize, k: usize| match k {
            0 => 0,
            1 => 15,
            _ => (row * 7 + k * 5 + k / 9) % 16,
        };
        let weights: Vec<f32> = (0..rows * k).map(|i| q(i / k, i % k) as f32).collect();
        let matrix = quantised(format, &weights, k);
        assert_eq!(matrix.len(), format.record_bytes());
        for row in 0..rows {
            let half = |at: usize| u16::from_le_bytes([matrix[at], matrix[at + 1]]);
            assert_eq!(half(2 * row), 0x3c00, "scale of row {row}");
            assert_eq!(half(32 + 2 * row), 0, "minimum of row {row}");
            for vector in 0..k / 8 {
                let at = 64 + 64 * vector + 4 * row;
                let dword = u32::from_le_bytes(matrix[at..at + 4].try_into().expect("four"));
                for p in 0..8 {
                    let k = if p < 4 { 8 * vector + 2 * p } else { 8 * vector + 2 * (p - 4) + 1 };
                    assert_eq!((dword >> (4 * p) & 15) as usize, q(row, k), "row {row}, {k}");
                    assert_eq!(integer(format, &matrix, row, k) as usize, q(row, k));
                }
            }
        }
    }
}

#[test]
fn every_weight_is_within_the_bound_and_the_bound_is_no_larger_than_it_must() {
    for format in FORMATS {
        let (rows, k) = (19, 3 * format.group + 7);
        for (kind, weights) in kinds(rows * k) {
            check_weights(format, kind, &weights, rows, k);
            let brain: Vec<bf16> = weights.iter().map(|w| bf16::from_f32(*w)).collect();
            let exact: Vec<f32> = brain.iter().map(|w| w.to_f32()).collect();
            check_weights(format, kind, &exact, rows, k);
            assert_eq!(quantised(format, &brain, k), quantised(format, &exact, k), "{kind}");
        }
    }
}

fn check_weights(format: Grouped, kind: &str, weights: &[f32], rows: usize, k: usize) {
    let matrix = quantised(format, weights, k);
    let actual = decoded(format, &matrix, rows, k);
    for row in 0..rows {
        for group in 0..format.groups(k) {
            let range =
                row * k + group * format.group..row * k + ((group + 1) * format.group).min(k);
            let wanted: Vec<f32> = weights[range.clone()].iter().copied().map(taken_for).collect();
            let (record, lane) = record(format, &matrix, k, row, group);
            let (scale, minimum) = scale_and_minimum(record, lane);
            check_group(kind, &wanted, &actual[range], scale, minimum);
        }
    }
}

/// Checks that the bound holds, and that the step is that of the group's range except for the
/// rounding of minimum and scale to f16.
fn check_group(kind: &str, wanted: &[f32], actual: &[f32], scale: f16, minimum: f16) {
    let bound = error_bound(scale, minimum);
    for (wanted, actual) in wanted.iter().zip(actual) {
        let error = (wanted - actual).abs();
        assert!(error <= bound, "{kind}: {wanted} became {actual}, the bound is {bound:e}");
    }
    let low = wanted.iter().copied().fold(f32::INFINITY, f32::min);
    let high = wanted.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let smallest = 2f32.powi(-24);
    let shift = (low.abs() * 2f32.powi(-10)).max(smallest);
    let step = (high - low + shift) / 15.0 * (1.0 + 2f32.powi(-9)) + smallest;
    assert!(scale.to_f32() <= step, "{kind}: scale {scale} for {low}..{high}");
    assert!(minimum.to_f32() <= low && low - minimum.to_f32() <= shift, "{kind}: {minimum}, {low}");
}

#[test]
fn groups_of_one_value_that_f16_holds_are_exact() {
    for value in [0.0, -0.0, 1.0, -0.3125, 65504.0, -65504.0, 2f32.powi(-24)] {
        let matrix = quantised(Grouped::W4, &[value; 64], 64);
        let (scale, minimum) = scale_and_minimum(&matrix, 0);
        assert_eq!((scale.to_bits(), minimum.to_f32()), (0, value), "{value}");
        assert!(decoded(Grouped::W4, &matrix, 1, 64).iter().all(|actual| *actual == value));
    }
}

#[test]
fn infinities_count_as_the_largest_number_and_nan_as_zero() {
    let mut weights = [0.5f32; 128];
    weights[3] = f32::NAN;
    weights[5] = -f32::NAN;
    weights[64] = f32::INFINITY;
    weights[65] = f32::NEG_INFINITY;
    weights[66] = 1e30;
    let matrix = quantised(Grouped::W4, &weights, 128);
    let actual = decoded(Grouped::W4, &matrix, 1, 128);
    assert!(actual.iter().all(|value| value.is_finite()));
    assert_eq!((actual[3], actual[5]), (0.0, 0.0));
    assert!((actual[0] - 0.5).abs() < 1e-3);
    for (index, wanted) in [(64, 65504.0), (65, -65504.0f32), (66, 65504.0)] {
        assert!((actual[index] - wanted).abs() <= 65504.0 * 2f32.powi(-9), "{}", actual[index]);
    }
    check_weights(Grouped::W4, "infinities and NaN", &weights, 1, 128);
}

#[test]
fn what_lies_behind_the_matrix_is_zero() {
    let (rows, k) = (17, 65);
    let matrix = quantised(Grouped::W4, &vec![3.5f32; rows * k], k);
    assert_eq!(matrix.len(), 4 * 576);
    for row in 17..32 {
        for group in 0..2 {
            let (record, lane) = record(Grouped::W4, &matrix, k, row, group);
            let (scale, minimum) = scale_and_minimum(record, lane);
            assert_eq!((scale.to_bits(), minimum.to_bits()), (0, 0), "row {row}");
            assert!((0..64).all(|k| integer(Grouped::W4, record, lane, k) == 0), "row {row}");
        }
    }
    let mut weights = vec![1.0f32; rows * k];
    weights[64] = -2.0;
    let matrix = quantised(Grouped::W4, &weights, k);
    let (record, _) = record(Grouped::W4, &matrix, k, 0, 1);
    assert_eq!(scale_and_minimum(record, 0).1.to_f32(), -2.0);
    assert!((1..64).all(|k| integer(Grouped::W4, record, 0, k) == 0));
}

#[test]
fn every_variant_and_every_cut_make_the_same_bytes() {
    let (rows, k) = (35, 200);
    for (kind, weights) in kinds(rows * k) {
        for format in FORMATS {
            let whole = quantised(format, &weights, k);
            let mut wide = vec![0xff; format.widened().size_bytes(rows, k)];
            widen(Variant::best(), format, k, &whole, &mut wide);
            let at_once = quantised(format.widened(), &weights, k);
            assert!(at_once == wide, "{kind} to 8 bits, {format:?}");
            for variant in Variant::available() {
                let mut out = vec![0xff; whole.len()];
                quantise(variant, format, &weights, k, &mut out);
                assert!(out == whole, "{kind}, {format:?}, {variant:?}");
                let mut out = vec![0xff; wide.len()];
                widen(variant, format, k, &whole, &mut out);
                assert!(out == wide, "widening of {kind}, {format:?}, {variant:?}");
            }
            let mut pieces = Vec::new();
            for weights in weights.chunks(16 * k) {
                pieces.extend(quantised(format, weights, k));
            }
            assert!(pieces == whole, "{kind}, {format:?} in pieces");
            let (narrow, block) = (format.block_bytes(k), format.widened().block_bytes(k));
            let mut pieces = vec![0xff; wide.len()];
            for (from, to) in whole.chunks(2 * narrow).zip(pieces.chunks_mut(2 * block)) {
                widen(Variant::best(), format, k, from, to);
            }
            assert!(pieces == wide, "widening of {kind}, {format:?} in pieces");
        }
    }
}

#[test]
fn widening_keeps_scales_minimums_integers_and_so_values() {
    let (rows, k) = (18, 130);
    for format in FORMATS {
        let (_, weights) = kinds(rows * k).swap_remove(0);
        let matrix = quantised(format, &weights, k);
        let mut wide = vec![0xff; format.widened().size_bytes(rows, k)];
        widen(Variant::best(), format, k, &matrix, &mut wide);
        let (narrow, record) = (format.record_bytes(), format.widened().record_bytes());
        for (from, to) in matrix.chunks_exact(narrow).zip(wide.chunks_exact(record)) {
            assert_eq!(from[..64], to[..64]);
            for row in 0..16 {
                for k in 0..format.group {
                    let q = integer(format, from, row, k);
                    assert_eq!(integer(format.widened(), to, row, k), q);
                    assert_eq!(i32::from(to[64 + k / 4 * 64 + row * 4 + k % 4] as i8), q);
                }
            }
        }
        let values = decoded(format, &matrix, rows, k);
        assert_eq!(bits(&decoded(format.widened(), &wide, rows, k)), bits(&values));
        let (scale, minimum) = scale_and_minimum(&matrix, 0);
        let q = integer(format, &matrix, 0, 9) as f32;
        assert_eq!(values[9], scale.to_f32().mul_add(q, minimum.to_f32()));
    }
}

/// Returns element `e` of a block, according to the description of the format.
fn gguf_value(stored: StoredType, block: &[u8], e: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let nibble = |at: usize| f32::from(block[at + e % 16] >> (e / 16 * 4) & 15);
    match stored {
        StoredType::Q4_0 => half(0) * (nibble(2) - 8.0),
        StoredType::Q4_1 => half(0) * nibble(4) + half(2),
        StoredType::Q8_0 => half(0) * f32::from(block[2 + e] as i8),
        other => panic!("{other:?} is not repacked"),
    }
}

#[test]
fn gguf_blocks_are_repacked_without_loss() {
    let mut noise = Noise(8);
    for (stored, f16_numbers) in
        [(StoredType::Q4_0, 1), (StoredType::Q4_1, 2), (StoredType::Q8_0, 1)]
    {
        let (rows, k) = (21, 96);
        let (_, block_bytes) = stored.block();
        let mut blocks: Vec<u8> =
            (0..rows * stored.row_bytes(k)).map(|_| noise.word() as u8).collect();
        for (index, block) in blocks.chunks_exact_mut(block_bytes).enumerate() {
            for number in 0..f16_numbers {
                let value = match index {
                    0 => 8188.0,
                    1 => -2f32.powi(-24),
                    _ => noise.normal() * 2f32.powi(-(noise.word() as i32 % 12).abs()),
                };
                block[2 * number..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
            }
        }
        let format = stored.grouped().expect("a format");
        let mut out = vec![0xff; format.size_bytes(rows, k)];
        from_blocks(stored, &blocks, k, &mut out).expect("scales are ordinary");
        let wanted: Vec<f32> = blocks
            .chunks_exact(block_bytes)
            .flat_map(|block| (0..32).map(|e| gguf_value(stored, block, e)))
            // Adding 0 removes the sign of a zero and changes nothing else.
            .map(|value| value + 0.0)
            .collect();
        let actual = decoded(format, &out, rows, k);
        assert_eq!(bits(&actual), bits(&wanted), "{stored:?}");
        for row in rows..32 {
            let (record, lane) = record(format, &out, k, row, 2);
            let (scale, minimum) = scale_and_minimum(record, lane);
            assert_eq!((scale.to_bits(), minimum.to_bits()), (0, 0));
            assert!((0..32).all(|k| integer(format, record, lane, k) == 0));
        }
    }
}

#[test]
fn what_cannot_be_repacked_is_refused_in_a_sentence() {
    let mut blocks = vec![0u8; 2 * 2 * 18];
    blocks[54..56].copy_from_slice(&f16::from_f32(8192.0).to_le_bytes());
    let mut out = vec![0; Grouped::GGUF_Q4.size_bytes(2, 64)];
    let error = from_blocks(StoredType::Q4_0, &blocks, 64, &mut out).expect_err("too large");
    assert_eq!(error, RepackError::Scale { row: 1, block: 1, scale: f16::from_f32(8192.0) });
    assert!(error.to_string().contains("row 1, block 1, has the scale 8192"), "{error}");
    let error = from_blocks(StoredType::F16, &[], 256, &mut []).expect_err("no format");
    assert!(error.to_string().starts_with("F16 has no grouped format"), "{error}");
}

#[test]
fn a_kv_record_keeps_everything_where_the_format_says() {
    // Groups of 64, 64 and 6; each has a 0 and a 15, so scales are 1 and minimums as added.
    let head_dim = 134;
    let q = |e: usize| match e % 64 {
        0 => 0,
        1 => 15,
        _ => (e * 11 + e / 7) % 16,
    };
    let offset = |e: usize| [2.0, -3.0, 100.0][e / 64];
    let x: Vec<f32> = (0..head_dim).map(|e| q(e) as f32 + offset(e)).collect();
    let mut out = vec![0xff; KvRecordFormat::Four.position_bytes(head_dim).expect("even")];
    quantise_kv(Variant::best(), KvRecordFormat::Four, &x, head_dim, &mut out);
    assert_eq!(out.len(), 67 + 12);
    for group in 0..3 {
        let length = if group == 2 { 6 } else { 64 };
        for i in 0..length / 2 {
            let byte = out[32 * group + i];
            assert_eq!(usize::from(byte & 15), q(64 * group + i));
            assert_eq!(usize::from(byte >> 4), q(64 * group + i + length / 2));
        }
        let half = |at: usize| f16::from_le_bytes([out[at], out[at + 1]]).to_f32();
        assert_eq!(half(67 + 2 * group), 1.0);
        assert_eq!(half(67 + 6 + 2 * group), offset(64 * group));
    }
}

#[test]
fn an_8_bit_record_keeps_everything_where_the_format_says() {
    // Groups of 32, 32 and 6; each has a 127 or a -127, so scales are powers of two.
    let head_dim = 70;
    let q = |e: usize| match e % 32 {
        0 => 127 - 254 * (e as i32 / 32 % 2),
        _ => (e as i32 * 37) % 127 - 63,
    };
    let scale = |e: usize| [1.0, 0.25, 8.0][e / 32];
    let x: Vec<f32> = (0..head_dim).map(|e| q(e) as f32 * scale(e)).collect();
    let mut out = vec![0xff; KvRecordFormat::Eight.position_bytes(head_dim).expect("even")];
    quantise_kv(Variant::best(), KvRecordFormat::Eight, &x, head_dim, &mut out);
    assert_eq!(out.len(), 70 + 6);
    for (e, byte) in out[..head_dim].iter().enumerate() {
        assert_eq!(i32::from(byte.cast_signed()), q(e), "element {e}");
    }
    for group in 0..3 {
        let at = head_dim + 2 * group;
        let found = bf16::from_le_bytes([out[at], out[at + 1]]).to_f32();
        assert_eq!(found, scale(32 * group), "group {group}");
    }
    let mut back = vec![f32::NAN; head_dim];
    decode_kv(KvRecordFormat::Eight, &out, head_dim, &mut back);
    assert_eq!(bits(&back), bits(&x));
}

#[test]
fn what_no_record_can_hold_is_replaced() {
    for format in KvRecordFormat::ALL {
        let mut x = vec![0.5; 64];
        (x[1], x[2], x[3]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let taken: Vec<f32> = x.iter().map(|x| taken_for(*x)).collect();
        let records = |x: &[f32]| {
            let mut out = vec![0xff; format.position_bytes(64).expect("even")];
            quantise_kv(Variant::best(), format, x, 64, &mut out);
            out
        };
        assert_eq!(records(&x), records(&taken), "{format:?}");
        let mut back = vec![f32::NAN; 64];
        decode_kv(format, &records(&x), 64, &mut back);
        assert!(back.iter().all(|value| value.is_finite()), "{format:?}: {back:?}");
        // Zeros stay zeros.
        decode_kv(format, &records(&[0.0; 64]), 64, &mut back);
        assert!(back.iter().all(|value| value.to_bits() == 0), "{format:?}: {back:?}");
    }
}

/// Checks that elements are within half a step of their decoded values, and that the step is no
/// larger than a bf16 scale needs.
fn check_eight(kind: &str, wanted: &[f32], actual: &[f32], scale: f32) {
    for (wanted, actual) in wanted.iter().zip(actual) {
        let error = (wanted - actual).abs();
        let bound = scale * (0.5 + 2f32.powi(-16)) + f32::MIN_POSITIVE;
        assert!(error <= bound, "{kind}: {wanted} became {actual}, the bound is {bound:e}");
    }
    let largest = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let most = largest / 127.0 * (1.0 + 2f32.powi(-7)) + f32::MIN_POSITIVE;
    assert!(scale <= most, "{kind}: scale {scale} for {largest}");
}

#[test]
fn kv_is_within_the_bound_and_the_same_from_every_variant() {
    let head_dims = [2, 6, 32, 64, 66, 80, 96, 128, 256];
    let cases = KvRecordFormat::ALL.into_iter().flat_map(|one| head_dims.map(|dim| (one, dim)));
    for (format, head_dim) in cases {
        let positions = 5;
        for (kind, x) in kinds(positions * head_dim) {
            let bytes = format.position_bytes(head_dim).expect("even");
            let mut records = vec![0xff; positions * bytes];
            quantise_kv(Variant::Scalar, format, &x, head_dim, &mut records);
            let mut actual = vec![f32::NAN; x.len()];
            decode_kv(format, &records, head_dim, &mut actual);
            for (position, record) in records.chunks_exact(bytes).enumerate() {
                let row = position * head_dim..(position + 1) * head_dim;
                let (x, actual) = (&x[row.clone()], &actual[row]);
                if format == KvRecordFormat::Eight {
                    for (group, (x, actual)) in x.chunks(32).zip(actual.chunks(32)).enumerate() {
                        let at = head_dim + 2 * group;
                        let scale = bf16::from_le_bytes([record[at], record[at + 1]]);
                        check_eight(kind, x, actual, scale.to_f32());
                    }
                    continue;
                }
                let groups = head_dim.div_ceil(64);
                for (group, (x, actual)) in x.chunks(64).zip(actual.chunks(64)).enumerate() {
                    let half = |index: usize| {
                        let at = head_dim / 2 + 2 * index;
                        f16::from_le_bytes([record[at], record[at + 1]])
                    };
                    check_group(kind, x, actual, half(group), half(groups + group));
                }
            }
            let brain: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
            let exact: Vec<f32> = brain.iter().map(|x| x.to_f32()).collect();
            for variant in Variant::available() {
                let made = |x: &[f32]| {
                    let mut out = vec![0xff; x.len() / head_dim * bytes];
                    quantise_kv(variant, format, x, head_dim, &mut out);
                    out
                };
                assert!(made(&x) == records, "{kind}, {format:?}, {head_dim}, {variant:?}");
                let alone: Vec<u8> = x.chunks_exact(head_dim).flat_map(made).collect();
                assert!(alone == records, "{kind}, {format:?}, {head_dim}, one by one");
                let mut out = vec![0xff; records.len()];
                quantise_kv(variant, format, &brain, head_dim, &mut out);
                assert!(out == made(&exact), "{kind}, {format:?}, {head_dim}, {variant:?}, bf16");
            }
        }
    }
}
