//! Tests that attention reads and writes nothing beyond an operand; see `guard_pages`.

use crate::common::{Random, bits, kernels, poison, variants};
use crate::guarded::{Guarded, SIDES, set_case};
use crate::sequences::{FORMATS, Kept, Options, roomy_kernels};
use half::bf16;
use kernels::quant::quantise_kv;
use kernels::{AttentionShape, AttentionUnit, Element, Kernels, KvCacheSlice, Variant, scores_len};
use model::quantized_format::KvRecordFormat;

/// Sequences of `(fresh rows, cached positions)`, every KV head a unit, without gaps anywhere.
struct Batch {
    shape: AttentionShape,
    units: Vec<AttentionUnit>,
    rows: usize,
    cache: usize,
    scores: usize,
}

/// Builds a batch; `room` is the capacity of the cache for appended positions: 0 if it is only
/// read.
fn batch(
    (heads, kv_heads, head_dim): (usize, usize, usize),
    sequences: &[(usize, usize)],
    room: bool,
) -> Batch {
    let shape = AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
    };
    let mut batch = Batch { shape, units: Vec::new(), rows: 0, cache: 0, scores: 0 };
    for &(fresh, past) in sequences {
        for kv_head in 0..kv_heads {
            batch.units.push(AttentionUnit {
                row0: batch.rows as u32,
                rows: fresh as u32,
                past: past as u32,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: batch.cache,
                cache_positions: 0,
                first_page: 0,
                scores_offset: batch.scores,
            });
            batch.cache += (past + if room { fresh } else { 0 }) * head_dim;
            batch.scores += scores_len(&shape, fresh, past);
        }
        batch.rows += fresh;
    }
    batch
}

const SHAPES: [(usize, usize, usize); 6] =
    [(1, 1, 1), (3, 3, 33), (6, 2, 64), (4, 2, 80), (7, 1, 128), (5, 5, 17)];
const SEQUENCES: [&[(usize, usize)]; 6] = [
    &[(1, 0)],
    &[(1, 1), (1, 2)],
    &[(3, 15), (1, 17)],
    &[(17, 0), (1, 63)],
    &[(1, 33), (5, 65), (2, 31)],
    &[(1, 129), (1, 300)],
];

fn check_reads<T: Element>(kernels: &Kernels) {
    for (index, (dims, sequences)) in
        SHAPES.iter().flat_map(|dims| SEQUENCES.iter().map(move |s| (*dims, *s))).enumerate()
    {
        let Batch { shape, units, rows, cache, scores } = batch(dims, sequences, false);
        let case = |name: &str| {
            set_case(format!("{name} {:?} {dims:?} {sequences:?}", kernels.variant()));
        };
        let mut random = Random::new(index as u64);
        let (heads, kv) = (rows * dims.0 * dims.2, rows * dims.1 * dims.2);
        let [q, k_fresh, v_fresh, k_cache, v_cache] =
            [heads, kv, kv, cache, cache].map(|len| random.vector::<T>(len));
        let mut expected_scores = poison::<f32>(scores);
        let mut expected_probabilities = poison::<f32>(scores);
        let mut expected = poison::<T>(heads);
        kernels.scores(&shape, &units, &q, &k_fresh, &k_cache, &mut expected_scores);
        kernels.softmax(&shape, &units, &expected_scores, None, &mut expected_probabilities);
        kernels.attention(
            &shape,
            &units,
            &q,
            &k_fresh,
            &v_fresh,
            &k_cache,
            &v_cache,
            None,
            &mut expected,
        );
        for side in SIDES {
            let q = Guarded::new("q", side, &q);
            let k_fresh = Guarded::new("k_fresh", side, &k_fresh);
            let v_fresh = Guarded::new("v_fresh", side, &v_fresh);
            let k_cache = Guarded::new("k_cache", side, &k_cache);
            let v_cache = Guarded::new("v_cache", side, &v_cache);
            let mut made = Guarded::new("scores", side, &poison::<f32>(scores));
            let mut probabilities = Guarded::new("probabilities", side, &poison::<f32>(scores));
            let mut values = Guarded::new("values", side, &poison::<T>(heads));
            let mut fused = Guarded::new("out", side, &poison::<T>(heads));
            case("scores");
            let (q, k) = (q.slice(), (k_fresh.slice(), k_cache.slice()));
            kernels.scores(&shape, &units, q, k.0, k.1, made.slice_mut());
            case("softmax");
            kernels.softmax(&shape, &units, made.slice(), None, probabilities.slice_mut());
            case("weighted values");
            let (v, weights) = ((v_fresh.slice(), v_cache.slice()), probabilities.slice());
            kernels.weighted_values(&shape, &units, weights, v.0, v.1, values.slice_mut());
            case("attention");
            kernels.attention(&shape, &units, q, k.0, v.0, k.1, v.1, None, fused.slice_mut());
            assert_eq!(bits(made.slice()), bits(&expected_scores), "{dims:?} {sequences:?}");
            assert_eq!(bits(weights), bits(&expected_probabilities), "{dims:?} {sequences:?}");
            assert_eq!(bits(values.slice()), bits(&expected), "{dims:?} {sequences:?}");
            assert_eq!(bits(fused.slice()), bits(&expected), "{dims:?} {sequences:?}");
        }
    }
}

#[test]
fn attention_stays_within_its_operands() {
    for variant in variants("attention_stays_within_its_operands") {
        let kernels = kernels(variant, 1);
        check_reads::<bf16>(&kernels);
        check_reads::<f32>(&kernels);
    }
}

fn check_append<T: Element>(kernels: &Kernels) {
    for dims in SHAPES {
        let sequences = [(1, 0), (3, 5), (2, 1)];
        let Batch { shape, units, rows, cache, .. } = batch(dims, &sequences, true);
        set_case(format!("append {:?} {dims:?}", kernels.variant()));
        let mut random = Random::new(dims.2 as u64);
        let fresh: Vec<T> = random.vector(rows * dims.1 * dims.2);
        let before: Vec<T> = random.vector(cache);
        let mut expected = before.clone();
        kernels.append(&shape, &units, &fresh, &mut expected);
        assert_ne!(bits(&expected), bits(&before));
        for side in SIDES {
            let fresh = Guarded::new("fresh", side, &fresh);
            let mut cache = Guarded::new("cache", side, &before);
            kernels.append(&shape, &units, fresh.slice(), cache.slice_mut());
            assert_eq!(bits(cache.slice()), bits(&expected), "{dims:?}");
        }
    }
}

#[test]
fn append_stays_within_its_operands() {
    for variant in variants("append_stays_within_its_operands") {
        let kernels = kernels(variant, 1);
        check_append::<bf16>(&kernels);
        check_append::<f32>(&kernels);
    }
}

/// Returns a quantised cache of seeded positions, without a byte after the last record.
fn records(
    random: &mut Random,
    format: KvRecordFormat,
    elements: usize,
    head_dim: usize,
) -> Vec<u8> {
    let record = format.position_bytes(head_dim).expect("an even head");
    let mut records = vec![0; elements / head_dim * record];
    quantise_kv(Variant::Scalar, format, &random.vector::<f32>(elements), head_dim, &mut records);
    records
}

fn cache_of<T>(format: KvRecordFormat, records: &[u8]) -> KvCacheSlice<'_, T> {
    KvCacheSlice::Records(format, records)
}

fn check_record_reads<T: Element>(kernels: &Kernels, format: KvRecordFormat) {
    let shapes = [(1, 1, 2), (6, 2, 64), (4, 2, 80), (7, 1, 128), (5, 5, 18)];
    for (index, (dims, sequences)) in
        shapes.iter().flat_map(|dims| SEQUENCES.iter().map(move |s| (*dims, *s))).enumerate()
    {
        let Batch { shape, units, rows, cache, scores } = batch(dims, sequences, false);
        let case = |name: &str| {
            set_case(format!("{format:?} {name} {:?} {dims:?} {sequences:?}", kernels.variant()));
        };
        let mut random = Random::new(index as u64);
        let (heads, kv) = (rows * dims.0 * dims.2, rows * dims.1 * dims.2);
        let [q, k_fresh, v_fresh] = [heads, kv, kv].map(|len| random.vector::<T>(len));
        let [k, v] = [cache, cache].map(|len| records(&mut random, format, len, dims.2));
        let mut expected_scores = poison::<f32>(scores);
        let mut expected_probabilities = poison::<f32>(scores);
        let mut expected = poison::<T>(heads);
        kernels.scores(&shape, &units, &q, &k_fresh, cache_of(format, &k), &mut expected_scores);
        kernels.softmax(&shape, &units, &expected_scores, None, &mut expected_probabilities);
        kernels.attention(
            &shape,
            &units,
            &q,
            &k_fresh,
            &v_fresh,
            cache_of(format, &k),
            cache_of(format, &v),
            None,
            &mut expected,
        );
        for side in SIDES {
            let (k, v) = (Guarded::new("k_cache", side, &k), Guarded::new("v_cache", side, &v));
            let (k, v) = (cache_of(format, k.slice()), cache_of(format, v.slice()));
            let q = Guarded::new("q", side, &q);
            let k_fresh = Guarded::new("k_fresh", side, &k_fresh);
            let v_fresh = Guarded::new("v_fresh", side, &v_fresh);
            let weights = Guarded::new("probabilities", side, &expected_probabilities);
            let mut made = Guarded::new("scores", side, &poison::<f32>(scores));
            let mut values = Guarded::new("values", side, &poison::<T>(heads));
            let mut fused = Guarded::new("out", side, &poison::<T>(heads));
            let (q, k_fresh, v_fresh) = (q.slice(), k_fresh.slice(), v_fresh.slice());
            case("scores");
            kernels.scores(&shape, &units, q, k_fresh, k, made.slice_mut());
            case("weighted values");
            let out = values.slice_mut();
            kernels.weighted_values(&shape, &units, weights.slice(), v_fresh, v, out);
            case("attention");
            kernels.attention(&shape, &units, q, k_fresh, v_fresh, k, v, None, fused.slice_mut());
            assert_eq!(bits(made.slice()), bits(&expected_scores), "{dims:?} {sequences:?}");
            assert_eq!(bits(values.slice()), bits(&expected), "{dims:?} {sequences:?}");
            assert_eq!(bits(fused.slice()), bits(&expected), "{dims:?} {sequences:?}");
        }
    }
}

#[test]
fn attention_over_quantised_caches_stays_within_its_operands() {
    for variant in variants("attention_over_quantised_caches_stays_within_its_operands") {
        let kernels = kernels(variant, 1);
        for format in KvRecordFormat::ALL {
            check_record_reads::<bf16>(&kernels, format);
            check_record_reads::<f32>(&kernels, format);
        }
    }
}

/// Checks caches that are rings, with places for the windows only, and sinks.
fn check_rings<T: Element>(kernels: &Kernels, format: Option<KvRecordFormat>) {
    let dims = [(3, 3, 34), (6, 2, 64), (16, 1, 256), (4, 2, 80)];
    let sequences = [(1, 0), (1, 6), (1, 7), (1, 70), (5, 70), (20, 3)];
    for (dims, window) in dims.into_iter().flat_map(|dims| [1, 7, 70].map(|w| (dims, w))) {
        let options = Options { window: Some(window), places: window, format, sinks: true };
        let batch = crate::sequences::batch::<T>(8, dims, &sequences, options);
        let expected = bits(&batch.fused(kernels, &batch.units));
        let sinks = batch.sinks.as_deref().unwrap_or_default();
        for side in SIDES {
            let context = format!("ring {:?} {dims:?} {options:?}", kernels.variant());
            set_case(context.clone());
            let q = Guarded::new("q", side, &batch.q);
            let [k_fresh, v_fresh] =
                batch.fresh.each_ref().map(|fresh| Guarded::new("fresh", side, fresh));
            let sinks = Guarded::new("sinks", side, sinks);
            let mut out = Guarded::new("out", side, &poison::<T>(batch.q.len()));
            let (q, k_fresh, v_fresh) = (q.slice(), k_fresh.slice(), v_fresh.slice());
            let (shape, units, sinks) = (&batch.shape, &batch.units, Some(sinks.slice()));
            match &batch.caches {
                [Kept::Plain(k), Kept::Plain(v)] => {
                    let (k, v) = (Guarded::new("k", side, k), Guarded::new("v", side, v));
                    let (k, v, out) = (k.slice(), v.slice(), out.slice_mut());
                    kernels.attention(shape, units, q, k_fresh, v_fresh, k, v, sinks, out);
                }
                [Kept::Records(format, k), Kept::Records(_, v)] => {
                    let (k, v) = (Guarded::new("k", side, k), Guarded::new("v", side, v));
                    let (k, v) = (cache_of(*format, k.slice()), cache_of(*format, v.slice()));
                    let out = out.slice_mut();
                    kernels.attention(shape, units, q, k_fresh, v_fresh, k, v, sinks, out);
                }
                _ => unreachable!("K and V are kept in one format"),
            }
            assert_eq!(bits(out.slice()), expected, "{context}");
            if let [Kept::Plain(before), _] = &batch.caches {
                let mut cache = Guarded::new("cache", side, before);
                kernels.append(shape, units, k_fresh, cache.slice_mut());
            }
        }
    }
}

#[test]
fn attention_stays_within_rings() {
    for variant in variants("attention_stays_within_rings") {
        let kernels = roomy_kernels(variant, 1);
        for format in FORMATS {
            check_rings::<bf16>(&kernels, format);
            check_rings::<f32>(&kernels, format);
        }
    }
}
