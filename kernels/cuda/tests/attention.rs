//! Tests of attention against the scalar reference: decode fused and separate, prefill, 4-bit
//! caches, appending; and the independence of rows.

mod batch;
#[path = "../../tests/common/mod.rs"]
mod common;
mod device;
mod forms;

use batch::{Batch, Four, batch, shape};
use common::{assert_close, bits};
use cuda_kernels::{
    DeviceAttentionUnits, KernelLaunch, KvOperand, append, append_kv4, attention_decode,
    attention_prefill,
};
use cuda_shim::set_order;
use device::{Half, dtype, of, of_mut, run};
use forms::{apart, decoded, expected, plainly, prefilled};
use kernels::Element;
use model::quantized_format::{KvRecordFormat, kv4_position_bytes};

/// Tolerance relative to the root mean square of a head's output: sums in f32 over a few hundred
/// positions.
const TOLERANCE: f64 = 1e-5;

/// Tolerance for prefill in bf16 on tensor cores, where weights are rounded to bf16: up to 2^-9 of
/// each term, and the terms are larger than their sum, in which they partly cancel.
const MATRIX_TOLERANCE: f64 = 2e-2;

/// Tolerance for decode on tensor cores, where a weight is two bf16: up to 2^-17 of each term.
const PARTS_TOLERANCE: f64 = 5e-5;

/// Heads, KV heads and elements of a head.
const SHAPES: [(u32, u32, u32); 9] = [
    (1, 1, 6),
    (3, 3, 64),
    (9, 3, 64),
    (4, 2, 80),
    (10, 1, 128),
    (2, 1, 33),
    (5, 5, 16),
    (2, 2, 256),
    (12, 2, 136),
];

const DECODE: [(u32, u32); 8] =
    [(1, 0), (1, 1), (1, 15), (1, 254), (1, 255), (1, 256), (1, 300), (1, 530)];

fn decode_matches<T: Element>() {
    for (seed, &(heads, kv_heads, head_dim)) in SHAPES.iter().enumerate() {
        // All lengths with every shape would take long: a few of them, differing from shape to
        // shape.
        let sequences: Vec<_> = DECODE.into_iter().cycle().skip(seed).step_by(3).take(3).collect();
        let batch = batch::<T>(seed as u64, shape(heads, kv_heads, head_dim), &sequences);
        let expected = plainly(&batch);
        let context = format!("{:?} {sequences:?}", batch.shape);
        let row = (head_dim as usize, 0.1);
        let fused = decoded(&batch, &batch.listed(0), batch.k(), batch.v());
        let on_matrices = size_of::<T>() == 2 && heads > kv_heads && matches!(head_dim, 64 | 128);
        let tolerance = if on_matrices { PARTS_TOLERANCE } else { TOLERANCE };
        assert_close(&fused, &expected, row, tolerance, &format!("fused {context}"));
        let apart = apart(&batch, &batch.listed(0), batch.k(), batch.v());
        assert_close(&apart, &expected, row, TOLERANCE, &format!("apart {context}"));
    }
}

#[test]
fn decode_attention_matches_the_reference() {
    decode_matches::<Half>();
    set_order(1);
    decode_matches::<f32>();
}

#[test]
fn every_length_of_decode_matches_the_reference() {
    let batch = batch::<f32>(77, shape(2, 1, 16), &DECODE);
    let fused = decoded(&batch, &batch.listed(0), batch.k(), batch.v());
    assert_close(&fused, &plainly(&batch), (16, 0.1), TOLERANCE, "all lengths");
}

/// Ragged prompts without a cache, and a few after cached positions.
const PREFILL: [(u32, u32); 7] = [(1, 0), (2, 0), (5, 0), (17, 0), (33, 0), (3, 40), (20, 31)];

fn prefill_matches<T: Element>() {
    for (seed, &(heads, kv_heads, head_dim)) in SHAPES.iter().enumerate() {
        let sequences: Vec<_> = PREFILL.into_iter().cycle().skip(seed).step_by(2).take(3).collect();
        let batch = batch::<T>(seed as u64, shape(heads, kv_heads, head_dim), &sequences);
        let context = format!("{:?} {sequences:?}", batch.shape);
        let out = prefilled(&batch, &batch.listed(0), batch.k(), batch.v());
        let on_matrices = size_of::<T>() == 2 && matches!(head_dim, 64 | 128);
        let tolerance = if on_matrices { MATRIX_TOLERANCE } else { TOLERANCE };
        assert_close(&out, &plainly(&batch), (head_dim as usize, 0.1), tolerance, &context);
    }
}

/// Tests tiles of 64 queries and positions, and a prompt's last tile and its neighbours.
#[test]
fn prefill_on_tensor_cores_matches_the_reference() {
    for (order, (heads, kv_heads, head_dim)) in
        [(2, 2, 64), (6, 2, 128), (5, 1, 64)].into_iter().enumerate()
    {
        set_order(order as u32);
        let batch =
            batch::<Half>(3, shape(heads, kv_heads, head_dim), &[(63, 0), (65, 70), (1, 127)]);
        let out = prefilled(&batch, &batch.listed(0), batch.k(), batch.v());
        let row = (head_dim as usize, 0.1);
        assert_close(&out, &plainly(&batch), row, MATRIX_TOLERANCE, &format!("{:?}", batch.shape));
        let k = Four::of(&batch, &batch.k_fresh, &batch.k_cache);
        let v = Four::of(&batch, &batch.v_fresh, &batch.v_cache);
        let ([k_fresh, k_cache], [v_fresh, v_cache]) =
            (k.decoded(head_dim as usize), v.decoded(head_dim as usize));
        let q: Vec<f32> = batch.q.iter().map(|value| value.to_f32()).collect();
        let expected = expected(&batch, &q, (&k_fresh, &k_cache), (&v_fresh, &v_cache));
        let out = prefilled(&batch, &batch.listed(0), k.operand(), v.operand());
        assert_close(&out, &expected, row, MATRIX_TOLERANCE, &format!("4 bits {:?}", batch.shape));
    }
}

#[test]
fn a_rows_bits_on_tensor_cores_do_not_depend_on_its_neighbours() {
    let mut all = batch::<Half>(5, shape(4, 2, 64), &[(70, 0), (5, 66), (40, 3)]);
    let four_k = Four::of(&all, &all.k_fresh, &all.k_cache);
    let four_v = Four::of(&all, &all.v_fresh, &all.v_cache);
    let plain = (all.k(), all.v());
    for (k, v) in [plain, (four_k.operand(), four_v.operand())] {
        neighbours_do_not_count(&mut all, k, v);
    }
}

fn neighbours_do_not_count(all: &mut Batch<Half>, k: KvOperand, v: KvOperand) {
    let whole = bits(&prefilled(all, &all.listed(0), k, v));
    let units = all.units.clone();
    let width = 4 * 64;
    for pair in units.chunks(2) {
        // Also the first rows without the later ones of their sequence.
        for rows in [pair[0].rows, pair[0].rows / 2] {
            all.units = pair
                .iter()
                .map(|unit| cuda_kernels::DeviceAttentionUnit { rows, ..*unit })
                .collect();
            let alone = bits(&prefilled(all, &all.listed(9), k, v));
            let (first, end) = (pair[0].row0 as usize, (pair[0].row0 + rows) as usize);
            assert_eq!(alone[first * width..end * width], whole[first * width..end * width]);
        }
    }
    all.units = units;
}

#[test]
fn prefill_attention_matches_the_reference() {
    prefill_matches::<f32>();
    set_order(1);
    prefill_matches::<Half>();
}

fn four_matches<T: Element>() {
    for (seed, (heads, kv_heads, head_dim)) in
        [(1, 1, 6), (4, 2, 80), (3, 1, 64), (9, 1, 128), (2, 2, 66)].into_iter().enumerate()
    {
        let sequences = [(1, 0), (1, 37), (1, 260)];
        let decode = batch::<T>(seed as u64, shape(heads, kv_heads, head_dim), &sequences);
        let prefill =
            batch::<T>(seed as u64, shape(heads, kv_heads, head_dim), &[(19, 0), (4, 13)]);
        for (batch, is_decode) in [(&decode, true), (&prefill, false)] {
            let k = Four::of(batch, &batch.k_fresh, &batch.k_cache);
            let v = Four::of(batch, &batch.v_fresh, &batch.v_cache);
            let ([k_fresh, k_cache], [v_fresh, v_cache]) =
                (k.decoded(head_dim as usize), v.decoded(head_dim as usize));
            let q: Vec<f32> = batch.q.iter().map(|value| value.to_f32()).collect();
            let expected = expected(batch, &q, (&k_fresh, &k_cache), (&v_fresh, &v_cache));
            let units = batch.listed(0);
            let outs = if is_decode {
                vec![
                    decoded(batch, &units, k.operand(), v.operand()),
                    apart(batch, &units, k.operand(), v.operand()),
                ]
            } else {
                vec![prefilled(batch, &units, k.operand(), v.operand())]
            };
            for out in outs {
                let context = format!("{:?} decode {is_decode}", batch.shape);
                let on_matrices = size_of::<T>() == 2 && matches!(head_dim, 64 | 128);
                let tolerance = match (on_matrices, is_decode) {
                    (true, true) => PARTS_TOLERANCE,
                    (true, false) => MATRIX_TOLERANCE,
                    _ => TOLERANCE,
                };
                assert_close(&out, &expected, (head_dim as usize, 0.1), tolerance, &context);
            }
        }
    }
}

#[test]
fn attention_over_4_bit_caches_matches_the_reference_over_what_they_hold() {
    four_matches::<Half>();
    four_matches::<f32>();
}

/// Tests every number of heads that share K and V, and lengths around the ends of tiles, warps and
/// blocks.
#[test]
fn decode_on_tensor_cores_matches_the_reference() {
    let sequences = [(1, 14), (1, 15), (1, 16), (1, 63), (1, 64), (1, 255), (1, 300), (1, 530)];
    for (seed, (heads, kv_heads, head_dim)) in
        [(2, 2, 128), (2, 2, 64), (4, 1, 128), (3, 1, 64), (8, 1, 64), (17, 1, 128)]
            .into_iter()
            .enumerate()
    {
        set_order(seed as u32);
        let batch = batch::<Half>(seed as u64, shape(heads, kv_heads, head_dim), &sequences);
        let four_k = Four::of(&batch, &batch.k_fresh, &batch.k_cache);
        let four_v = Four::of(&batch, &batch.v_fresh, &batch.v_cache);
        let ([k_fresh, k_cache], [v_fresh, v_cache]) =
            (four_k.decoded(head_dim as usize), four_v.decoded(head_dim as usize));
        let q: Vec<f32> = batch.q.iter().map(|value| value.to_f32()).collect();
        let of_four = expected(&batch, &q, (&k_fresh, &k_cache), (&v_fresh, &v_cache));
        let of_plain = plainly(&batch);
        let forms =
            [(four_k.operand(), four_v.operand(), of_four), (batch.k(), batch.v(), of_plain)];
        let mut alone = batch;
        let all = alone.units.clone();
        for (k, v, expected) in forms {
            alone.units.clone_from(&all);
            let out = decoded(&alone, &alone.listed(0), k, v);
            let context = format!("{:?}", alone.shape);
            assert_close(&out, &expected, (head_dim as usize, 0.1), PARTS_TOLERANCE, &context);
            let width = (heads * head_dim) as usize;
            for (row, units) in all.chunks(kv_heads as usize).enumerate() {
                alone.units = units.to_vec();
                let own = decoded(&alone, &alone.listed(600), k, v);
                let of_row = |out: &[Half]| bits(&out[row * width..][..width]);
                assert_eq!(of_row(&own), of_row(&out), "{context}: row {row}");
            }
        }
    }
}

/// Tests rows of one sequence, in the batch and alone, in every variant of attention, with wider
/// bounds too.
#[test]
fn a_rows_bits_do_not_depend_on_its_neighbours() {
    let sequences = [(1, 300), (1, 20), (1, 0), (1, 256)];
    let mut all = batch::<Half>(5, shape(6, 2, 32), &sequences);
    type Form = fn(&Batch<Half>, &DeviceAttentionUnits, KvOperand, KvOperand) -> Vec<Half>;
    let forms: [Form; 3] = [decoded, apart, prefilled];
    let whole: Vec<_> =
        forms.iter().map(|form| bits(&form(&all, &all.listed(0), all.k(), all.v()))).collect();
    let units = std::mem::take(&mut all.units);
    let width = 6 * 32;
    for (row, pair) in units.chunks(2).enumerate() {
        all.units = pair.to_vec();
        for (form, whole) in forms.iter().zip(&whole) {
            for slack in [0, 700] {
                let alone = bits(&form(&all, &all.listed(slack), all.k(), all.v()));
                let of_row = |bits: &[u32]| bits[row * width..][..width].to_vec();
                assert_eq!(of_row(&alone), of_row(whole), "row {row}, slack {slack}");
            }
        }
    }
}

/// The last rows of a prompt do not change the first ones, not even by being NaN.
#[test]
fn later_rows_of_a_prompt_do_not_reach_earlier_ones() {
    let mut full = batch::<f32>(6, shape(4, 2, 24), &[(40, 0)]);
    let clean = bits(&prefilled(&full, &full.listed(0), full.k(), full.v()));
    let (first, row) = (23, 2 * 24);
    full.k_fresh[first * row..].fill(f32::NAN);
    full.v_fresh[first * row..].fill(f32::NAN);
    let poisoned = bits(&prefilled(&full, &full.listed(0), full.k(), full.v()));
    let width = 4 * 24;
    assert_eq!(poisoned[..first * width], clean[..first * width]);
    assert!(poisoned[first * width..].iter().all(|bits| f32::from_bits(*bits).is_nan()));
}

/// Two prompts with the same beginning: with rows of their own, and with the first one's rows.
fn shares<T: Element>() {
    for (heads, kv_heads, head_dim) in [(4, 2, 80), (3, 1, 64), (2, 2, 128), (5, 5, 16)] {
        let rows = 90;
        let mut whole =
            batch::<T>(8, shape(heads, kv_heads, head_dim), &[(3, 0), (rows, 0), (rows, 0)]);
        let row = (kv_heads * head_dim) as usize;
        for shared in [1, 31, 64, 89] {
            let (first, second) = (3, 3 + rows);
            for fresh in [&mut whole.k_fresh, &mut whole.v_fresh] {
                let from = first as usize * row..(first + shared) as usize * row;
                fresh.copy_within(from, second as usize * row);
            }
            let mut sharing = batch::<T>(8, whole.shape, &[(3, 0), (rows, 0), (rows, 0)]);
            sharing.k_fresh.clone_from(&whole.k_fresh);
            sharing.v_fresh.clone_from(&whole.v_fresh);
            for unit in &mut sharing.units[2 * kv_heads as usize..] {
                (unit.row0, unit.rows) = (second + shared, rows - shared);
                (unit.past, unit.shared_row) = (shared, first);
            }
            let four = Four::of(&whole, &whole.k_fresh, &whole.k_cache);
            let forms = [(whole.k(), whole.v()), (four.operand(), four.operand())];
            for (k, v) in forms {
                let expected = prefilled(&whole, &whole.listed(0), k, v);
                let found = prefilled(&sharing, &sharing.listed(0), k, v);
                let at = ((second + shared) * heads * head_dim) as usize;
                assert_eq!(
                    bits(&found[at..]),
                    bits(&expected[at..]),
                    "{heads} x {head_dim}, {shared}"
                );
            }
            let appended = |batch: &Batch<T>| {
                let (mut cache, units) = (batch.k_cache.clone(), batch.listed(0));
                let to = of_mut(&mut cache);
                run(&[append(dtype::<T>(), &batch.shape, &units, of(&batch.k_fresh), to)]);
                let bytes = kv4_position_bytes(head_dim as usize).expect("an even head");
                let mut records = vec![0xaa; cache.len() / head_dim as usize * bytes];
                let to = of_mut(&mut records);
                run(&[append_kv4(dtype::<T>(), &batch.shape, &units, of(&batch.k_fresh), to)]);
                (bits(&cache), records)
            };
            assert!(appended(&sharing) == appended(&whole), "{heads} x {head_dim}, {shared}");
        }
    }
}

#[test]
fn shared_rows_give_the_bits_of_own_rows() {
    shares::<Half>();
    shares::<f32>();
}

fn appends<T: Element>() {
    let batch = batch::<T>(9, shape(4, 2, 66), &[(3, 5), (1, 0), (7, 70)]);
    let units = batch.listed(0);
    let mut cache = batch.k_cache.clone();
    let to = of_mut(&mut cache);
    run(&[append(dtype::<T>(), &batch.shape, &units, of(&batch.k_fresh), to)]);
    let mut wanted = batch.k_cache.clone();
    let bytes = kv4_position_bytes(66).expect("an even head");
    let mut records = vec![0xaa; cache.len() / 66 * bytes];
    let mut wanted_records = records.clone();
    let four = of_mut(&mut records);
    run(&[append_kv4(dtype::<T>(), &batch.shape, &units, of(&batch.k_fresh), four)]);
    for unit in &batch.units {
        for row in 0..unit.rows {
            let from = ((unit.row0 + row) * 2 + unit.kv_head) as usize * 66;
            let row_values = &batch.k_fresh[from..from + 66];
            let at = unit.cache_offset as usize + (unit.past + row) as usize * 66;
            wanted[at..at + 66].copy_from_slice(row_values);
            let record = &mut wanted_records[at / 66 * bytes..][..bytes];
            kernels::quant::quantise_kv(
                kernels::Variant::Scalar,
                KvRecordFormat::Four,
                row_values,
                66,
                record,
            );
        }
    }
    assert_eq!(bits(&cache), bits(&wanted));
    assert_eq!(records, wanted_records);
}

#[test]
fn appending_writes_the_fresh_rows_and_nothing_else() {
    appends::<Half>();
    appends::<f32>();
}

#[test]
fn nothing_to_do_is_an_empty_launch() {
    let units = DeviceAttentionUnits {
        pointer: 0,
        count: 0,
        rows_max: 1,
        appended_max: 1,
        positions_max: 1,
    };
    let none = KvOperand::Plain { fresh: 0, cache: 0 };
    let shape = shape(2, 1, 8);
    let dtype = dtype::<f32>();
    let [part, whole] = attention_decode(dtype, &shape, &units, 0, none, none, 0, 0, 0);
    let prefill = attention_prefill(dtype, &shape, &units, 0, none, none, 0, 0);
    assert!([part, whole, prefill].iter().all(KernelLaunch::is_empty));
}
