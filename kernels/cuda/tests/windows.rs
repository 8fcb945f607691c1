//! Tests of attention over windows, with full caches and rings, and with sinks: against the scalar
//! reference, and with the same bits for any location of the past and any partition of a prompt.

mod batch;
#[path = "../../tests/common/mod.rs"]
mod common;
mod device;
mod forms;

use batch::{Batch, Four, ring_batch, shape};
use common::{Random, assert_close, bits};
use cuda_kernels::{DeviceAttentionShape, DeviceAttentionUnits, KvOperand, append, append_kv4};
use device::{Half, dtype, of, of_mut, run};
use forms::{apart, decoded, expected, plainly, prefilled};
use kernels::Element;
use model::quantized_format::{KvRecordFormat, kv4_position_bytes};

/// Tolerance of `attention.rs`.
const TOLERANCE: f64 = 1e-5;
const MATRIX_TOLERANCE: f64 = 2e-2;
const PARTS_TOLERANCE: f64 = 5e-5;

/// Heads, KV heads and elements of a head; groups and heads of gpt-oss and Gemma 3 among them.
const SHAPES: [(u32, u32, u32); 4] = [(3, 1, 16), (8, 1, 64), (4, 2, 128), (16, 1, 256)];

/// Within a tile and a block of positions, at their edges, and beyond.
const WINDOWS: [u32; 7] = [1, 2, 31, 64, 65, 256, 300];

fn windowed(dims: (u32, u32, u32), window: u32) -> DeviceAttentionShape {
    DeviceAttentionShape { window: Some(window), ..shape(dims.0, dims.1, dims.2) }
}

type Form<T> = fn(&Batch<T>, &DeviceAttentionUnits, KvOperand, KvOperand) -> Vec<T>;

/// Checks a batch over a full cache and over rings: each variant of attention is near the
/// reference, and rings have the bits of the full cache.
fn check<T: Element>(
    shape: DeviceAttentionShape,
    sequences: &[(u32, u32)],
    forms: &[Form<T>],
    tolerance: f64,
) {
    let window = shape.window.expect("a window");
    for sinks in [false, true] {
        let mut full = None;
        for places in [0, window, window + 7] {
            let mut batch = ring_batch::<T>(u64::from(window), shape, sequences, places);
            let heads = 0..shape.heads;
            let mut random = Random::new(4);
            batch.sinks = sinks.then(|| heads.map(|_| 2.0 * random.unit()).collect());
            let context = format!("{shape:?} {places} {sinks}");
            let outs: Vec<Vec<T>> = forms
                .iter()
                .map(|form| form(&batch, &batch.listed(0), batch.k(), batch.v()))
                .collect();
            let own_bits: Vec<_> = outs.iter().map(|out| bits(out)).collect();
            let full = full.get_or_insert_with(|| {
                let row = (shape.head_dim as usize, 0.1);
                for out in &outs {
                    assert_close(out, &plainly(&batch), row, tolerance, &context);
                }
                own_bits.clone()
            });
            assert_eq!(*full, own_bits, "{context}");
            // Wider bounds make more blocks, which see nothing.
            for (form, own_bits) in forms.iter().zip(&own_bits).filter(|_| sinks) {
                let wide = form(&batch, &batch.listed(600), batch.k(), batch.v());
                assert_eq!(bits(&wide), *own_bits, "{context}, wide");
            }
        }
    }
}

#[test]
fn decode_over_windows_matches_the_reference() {
    for (seed, dims) in SHAPES.into_iter().enumerate() {
        for window in WINDOWS.into_iter().skip(seed % 2).step_by(2) {
            let pasts = [0, window - 1, window, 2 * window + 1, 530];
            let sequences = pasts.map(|past| (1, past));
            let shape = windowed(dims, window);
            let tolerance = if matches!(dims.2, 64 | 128) { PARTS_TOLERANCE } else { TOLERANCE };
            check::<Half>(shape, &sequences, &[decoded, apart], tolerance);
            if dims.2 == 16 {
                check::<f32>(shape, &sequences, &[decoded, apart], TOLERANCE);
            }
        }
    }
}

#[test]
fn prefill_over_windows_matches_the_reference() {
    let sequences = [(33, 0), (20, 31), (70, 66)];
    for window in [1, 31, 65] {
        check::<f32>(windowed((3, 1, 24), window), &sequences, &[prefilled], TOLERANCE);
        check::<Half>(windowed((2, 1, 256), window), &sequences[..2], &[prefilled], TOLERANCE);
        for dims in [(8, 1, 64), (2, 2, 128)] {
            let shape = windowed(dims, window);
            check::<Half>(shape, &sequences, &[prefilled], MATRIX_TOLERANCE);
        }
    }
}

/// Sinks without a window.
#[test]
fn sinks_take_their_part() {
    let sequences = [(1, 0), (1, 255), (1, 530)];
    for (dims, forms) in [
        ((8, 1, 64), &[decoded, apart, prefilled] as &[Form<Half>]),
        ((4, 2, 80), &[decoded, apart, prefilled]),
    ] {
        let mut batch = batch::batch::<Half>(3, shape(dims.0, dims.1, dims.2), &sequences);
        for form in forms {
            let run = |batch: &Batch<Half>| form(batch, &batch.listed(0), batch.k(), batch.v());
            let without = bits(&run(&batch));
            batch.sinks = Some((0..dims.0).map(|head| head as f32 / 4.0 - 1.0).collect());
            let row = (dims.2 as usize, 0.1);
            assert_close(&run(&batch), &plainly(&batch), row, MATRIX_TOLERANCE, "sinks");
            assert_ne!(bits(&run(&batch)), without);
            // A sink of zero weight has no effect.
            batch.sinks = Some(vec![f32::NEG_INFINITY; dims.0 as usize]);
            assert_eq!(bits(&run(&batch)), without);
            batch.sinks = None;
        }
    }
}

#[test]
fn windows_over_4_bit_caches_match_the_reference_over_what_they_hold() {
    for (dims, window) in [((4, 2, 66), 7), ((8, 1, 64), 64), ((2, 2, 128), 300)] {
        let shape = windowed(dims, window);
        let head_dim = dims.2 as usize;
        let sequences = [(1, 0), (1, window), (1, 2 * window + 3)];
        let prompts = [(19, 0), (4, window + 2)];
        let (on_matrices, of_decode) = match head_dim {
            66 => (TOLERANCE, TOLERANCE),
            _ => (MATRIX_TOLERANCE, PARTS_TOLERANCE),
        };
        for (sequences, form, tolerance) in [
            (&sequences[..], decoded as Form<Half>, of_decode),
            (&sequences[..], apart, TOLERANCE),
            (&prompts[..], prefilled, on_matrices),
        ] {
            let mut full = None;
            for places in [0, window] {
                let batch = ring_batch::<Half>(9, shape, sequences, places);
                let k = Four::of(&batch, &batch.k_fresh, &batch.k_cache);
                let v = Four::of(&batch, &batch.v_fresh, &batch.v_cache);
                let out = form(&batch, &batch.listed(0), k.operand(), v.operand());
                let full = full.get_or_insert_with(|| {
                    let ([k_fresh, k_cache], [v_fresh, v_cache]) =
                        (k.decoded(head_dim), v.decoded(head_dim));
                    let q: Vec<f32> = batch.q.iter().map(|value| value.to_f32()).collect();
                    let expected = expected(&batch, &q, (&k_fresh, &k_cache), (&v_fresh, &v_cache));
                    let context = format!("{shape:?} {sequences:?}");
                    assert_close(&out, &expected, (head_dim, 0.1), tolerance, &context);
                    bits(&out)
                });
                assert_eq!(bits(&out), *full, "{shape:?} {places}");
            }
        }
    }
}

/// Compares a prompt at once with pieces over a ring that the kernels append to.
fn cut<T: Element>(dims: (u32, u32, u32), window: u32) {
    let rows = 90;
    let whole = ring_batch::<T>(5, windowed(dims, window), &[(rows, 0)], 0);
    let expected = bits(&prefilled(&whole, &whole.listed(0), whole.k(), whole.v()));
    let (q_row, kv_row) = ((dims.0 * dims.2) as usize, (dims.1 * dims.2) as usize);
    let mut caches = [(); 2].map(|()| vec![T::from_f32(f32::NAN); kv_row * window as usize]);
    let mut past = 0;
    for piece in [1, 40, 1, 31, 17] {
        let mut part = ring_batch::<T>(0, whole.shape, &[(piece, past)], window);
        let of_piece = |values: &[T], row: usize| {
            values[past as usize * row..][..piece as usize * row].to_vec()
        };
        part.q = of_piece(&whole.q, q_row);
        (part.k_fresh, part.v_fresh) =
            (of_piece(&whole.k_fresh, kv_row), of_piece(&whole.v_fresh, kv_row));
        part.k_cache.clone_from(&caches[0]);
        part.v_cache.clone_from(&caches[1]);
        let units = part.listed(0);
        let out = bits(&prefilled(&part, &units, part.k(), part.v()));
        let at = past as usize * q_row;
        assert_eq!(out, expected[at..][..out.len()], "{window}: {piece} rows after {past}");
        for (cache, fresh) in caches.iter_mut().zip([&part.k_fresh, &part.v_fresh]) {
            run(&[append(dtype::<T>(), &part.shape, &units, of(fresh), of_mut(cache))]);
        }
        past += piece;
    }
    assert_eq!(past, rows);
}

#[test]
fn a_prompt_in_pieces_over_a_ring_has_the_bits_of_the_whole() {
    for window in [1, 7, 31, 64, 80] {
        cut::<f32>((3, 1, 24), window);
        cut::<Half>((4, 2, 64), window);
    }
}

#[test]
fn appending_to_rings_writes_the_bytes_of_the_cpu() {
    let dims = (4, 2, 66);
    // Within the ring, around its end, and prompts longer than it; two sequences that share rows.
    let mut batch = ring_batch::<f32>(2, windowed(dims, 5), &[(3, 0), (2, 9), (17, 4), (8, 0)], 5);
    for unit in &mut batch.units[6..] {
        (unit.past, unit.rows, unit.shared_row) = (6, 2, 5);
    }
    let units = batch.listed(0);
    let bytes = kv4_position_bytes(66).expect("an even head");
    let mut cache = batch.k_cache.clone();
    let mut records = vec![0xaa; cache.len() / 66 * bytes];
    let (mut expected_cache, mut expected_records) = (cache.clone(), records.clone());
    let dtype = dtype::<f32>();
    let (fresh, to, four) = (of(&batch.k_fresh), of_mut(&mut cache), of_mut(&mut records));
    run(&[append(dtype, &batch.shape, &units, fresh, to)]);
    run(&[append_kv4(dtype, &batch.shape, &units, fresh, four)]);
    for unit in &batch.units {
        let of_cpu = kernels::AttentionUnit {
            row0: unit.row0,
            rows: unit.rows,
            past: unit.past,
            shared_row: Some(unit.shared_row)
                .filter(|row| *row != cuda_kernels::DeviceAttentionUnit::CACHED),
            kv_head: unit.kv_head,
            cache_offset: unit.cache_offset as usize,
            cache_positions: unit.cache_positions,
            first_page: 0,
            scores_offset: 0,
        };
        assert_eq!(of_cpu.appended().count(), unit.appended() as usize);
        for (row, place) in of_cpu.appended() {
            let head = &batch.k_fresh[(row * 2 + unit.kv_head as usize) * 66..][..66];
            let at = of_cpu.cache_offset + place * 66;
            expected_cache[at..at + 66].copy_from_slice(head);
            let record = &mut expected_records[at / 66 * bytes..][..bytes];
            kernels::quant::quantise_kv(
                kernels::Variant::Scalar,
                KvRecordFormat::Four,
                head,
                66,
                record,
            );
        }
    }
    assert_eq!(bits(&cache), bits(&expected_cache));
    assert_eq!(records, expected_records);
}
