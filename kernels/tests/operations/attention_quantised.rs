//! Tests of attention over a quantised KV cache: every variant against the reference on the decoded
//! cache, fused against separate, prefill against decode, and independence of threads, chunks and
//! neighbours.

use crate::common::{Random, assert_close, bits, poison, tolerance, values_tolerance, variants};
use half::bf16;
use kernels::quant::{decode_kv, quantise_kv};
use kernels::{
    AttentionShape, AttentionUnit, Element, Kernels, KvCacheSlice, ScratchLimits, Variant,
    reference, scores_len,
};
use model::quantized_format::KvRecordFormat;

/// Returns the permitted errors of probabilities and of values: with 4 bits those of rounding
/// queries, and weights, to 8 bits; with 8 bits those of the arithmetic.
fn tolerances<T: Element>(format: KvRecordFormat, variant: Variant) -> (f64, f64) {
    match format {
        KvRecordFormat::Four => (4e-2, 5e-2),
        KvRecordFormat::Eight => (tolerance(), values_tolerance::<T>(variant)),
    }
}

const SHAPES: [(usize, usize, usize); 11] = [
    (1, 1, 2),
    (2, 1, 6),
    (3, 3, 64),
    (9, 3, 64),
    (4, 2, 80),
    (7, 1, 128),
    (5, 5, 16),
    (4, 1, 96),
    (2, 2, 128),
    (9, 1, 256),
    (6, 2, 32),
];
/// Fresh rows and cached positions around the edges of vectors and blocks.
const SEQUENCES: [(usize, usize); 20] = [
    (1, 0),
    (1, 1),
    (1, 2),
    (1, 3),
    (3, 2),
    (1, 15),
    (1, 16),
    (1, 17),
    (17, 0),
    (1, 31),
    (1, 32),
    (1, 33),
    (1, 63),
    (1, 64),
    (1, 65),
    (33, 31),
    (2, 130),
    (5, 65),
    (49, 0),
    (2, 63),
];
/// Sequences longer than a chunk of positions.
const LONG: [(usize, usize); 4] = [(1, 1023), (1, 1024), (1, 2500), (1, 3071)];

struct Batch<T> {
    format: KvRecordFormat,
    shape: AttentionShape,
    units: Vec<AttentionUnit>,
    q: Vec<T>,
    fresh: [Vec<T>; 2],
    caches: [Vec<u8>; 2],
    scores_len: usize,
}

fn roomy_kernels(variant: Variant, threads: usize) -> Kernels {
    let limits =
        ScratchLimits { rows: 300, linear_inputs: 64, positions: 3200, group: 9, head_dim: 256 };
    Kernels::new(variant, threads, limits).expect("threads start")
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
    }
}

fn record_bytes(format: KvRecordFormat, head_dim: usize) -> usize {
    format.position_bytes(head_dim).expect("an even head")
}

fn batch<T: Element>(
    seed: u64,
    format: KvRecordFormat,
    shape: AttentionShape,
    sequences: &[(usize, usize)],
) -> Batch<T> {
    let mut random = Random::new(seed);
    let record = record_bytes(format, shape.head_dim);
    let mut units = Vec::new();
    let (mut rows, mut cached, mut scores) = (0, 0, 0);
    for &(fresh, past) in sequences {
        for kv_head in 0..shape.kv_heads {
            units.push(AttentionUnit {
                row0: rows as u32,
                rows: fresh as u32,
                past: past as u32,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: cached * shape.head_dim,
                cache_positions: 0,
                first_page: 0,
                scores_offset: scores,
            });
            cached += past + fresh + 1;
            scores += scores_len(&shape, fresh, past);
        }
        rows += fresh;
    }
    let mut cache = || {
        // Memory after the cached positions decodes to NaN.
        let mut cache = vec![0xff; cached * record];
        for unit in &units {
            let len = unit.past as usize;
            let values: Vec<T> = random.vector(len * shape.head_dim);
            let first = unit.cache_offset / shape.head_dim * record;
            let to = &mut cache[first..][..len * record];
            quantise_kv(Variant::Scalar, format, &values, shape.head_dim, to);
        }
        cache
    };
    let caches = [cache(), cache()];
    let kv = rows * shape.kv_heads * shape.head_dim;
    Batch {
        format,
        q: random.vector(rows * shape.heads * shape.head_dim),
        fresh: [random.vector(kv), random.vector(kv)],
        caches,
        scores_len: scores,
        shape,
        units,
    }
}

/// Returns quantised and decoded values.
fn rounded<T: Element>(format: KvRecordFormat, values: &[T], head_dim: usize) -> Vec<f32> {
    let record = record_bytes(format, head_dim);
    let mut records = vec![0; values.len() / head_dim * record];
    quantise_kv(Variant::Scalar, format, values, head_dim, &mut records);
    decoded(format, &records, head_dim)
}

fn decoded(format: KvRecordFormat, records: &[u8], head_dim: usize) -> Vec<f32> {
    let record = record_bytes(format, head_dim);
    let mut out = vec![0.0; records.len() / record * head_dim];
    decode_kv(format, records, head_dim, &mut out);
    out
}

impl<T: Element> Batch<T> {
    fn caches(&self) -> [KvCacheSlice<'_, T>; 2] {
        self.caches.each_ref().map(|cache| KvCacheSlice::Records(self.format, cache))
    }

    fn fused(&self, kernels: &Kernels, units: &[AttentionUnit]) -> Vec<T> {
        let mut out = poison::<T>(self.q.len());
        self.fused_into(kernels, units, &mut out);
        out
    }

    fn fused_into(&self, kernels: &Kernels, units: &[AttentionUnit], out: &mut [T]) {
        let [k, v] = self.caches();
        let [k_fresh, v_fresh] = &self.fresh;
        kernels.attention(&self.shape, units, &self.q, k_fresh, v_fresh, k, v, None, out);
    }

    fn separate(&self, kernels: &Kernels) -> (Vec<f32>, Vec<T>) {
        let (shape, units) = (&self.shape, &self.units[..]);
        let [k, v] = self.caches();
        let mut scores = poison::<f32>(self.scores_len);
        let mut probabilities = poison::<f32>(self.scores_len);
        let mut out = poison::<T>(self.q.len());
        kernels.scores(shape, units, &self.q, &self.fresh[0], k, &mut scores);
        kernels.softmax(shape, units, &scores, None, &mut probabilities);
        kernels.weighted_values(shape, units, &probabilities, &self.fresh[1], v, &mut out);
        (probabilities, out)
    }

    /// Returns fresh rows and caches of K and V as attention sees them.
    fn seen(&self) -> ([Vec<f32>; 2], [Vec<f32>; 2]) {
        let head_dim = self.shape.head_dim;
        let fresh = self.fresh.each_ref().map(|fresh| rounded(self.format, fresh, head_dim));
        let caches = self.caches.each_ref().map(|cache| decoded(self.format, cache, head_dim));
        (fresh, caches)
    }

    fn check_reference(&self, variant: Variant, probabilities: &[f32], out: &[T], context: &str) {
        let (of_probabilities, of_values) = tolerances::<T>(self.format, variant);
        let AttentionShape { heads, head_dim, .. } = self.shape;
        let q: Vec<f32> = self.q.iter().map(|q| q.to_f32()).collect();
        let (fresh, caches) = self.seen();
        let [k, v] = [0, 1].map(|kv| reference::KvSlices { fresh: &fresh[kv], cache: &caches[kv] });
        let group = self.shape.group();
        for unit in &self.units {
            let context = format!("{context} {unit:?}");
            let stride = (unit.past + unit.rows) as usize;
            let expected = reference::attention(&self.shape, unit, &q, k, v, None);
            for (query, (expected_probabilities, expected)) in expected.iter().enumerate() {
                let visible = expected_probabilities.len();
                let at = unit.scores_offset + query * stride;
                let actual = &probabilities[at..at + visible];
                let row = (visible, 1.0);
                assert_close(actual, expected_probabilities, row, of_probabilities, &context);
                let hidden = &probabilities[at + visible..at + stride];
                assert!(hidden.iter().all(|value| value.is_nan()), "{context}: hidden, written");
                let row = unit.row0 as usize + query / group;
                let head = unit.kv_head as usize * group + query % group;
                let actual = &out[(row * heads + head) * head_dim..][..head_dim];
                assert_close(actual, expected, (head_dim, 0.1), of_values, &context);
            }
        }
    }
}

fn check<T: Element>(variant: Variant, format: KvRecordFormat, sequences: &[(usize, usize)]) {
    let one = roomy_kernels(variant, 1);
    for (seed, (heads, kv_heads, head_dim)) in SHAPES.into_iter().enumerate() {
        let shape = shape(heads, kv_heads, head_dim);
        let batch = batch::<T>(seed as u64, format, shape, sequences);
        let (probabilities, out) = batch.separate(&one);
        let whole = bits(&out);
        let context = format!("seed {seed} {format:?} {variant:?} {shape:?}");
        assert_eq!(bits(&batch.fused(&one, &batch.units)), whole, "fused, {context}");
        batch.check_reference(variant, &probabilities, &out, &context);
        for threads in [2, 5] {
            let many = roomy_kernels(variant, threads);
            let context = format!("{threads} threads, {context}");
            assert_eq!(bits(&batch.fused(&many, &batch.units)), whole, "fused, {context}");
            assert_eq!(bits(&batch.separate(&many).1), whole, "separate, {context}");
            let mut alone = poison::<T>(batch.q.len());
            for units in batch.units.chunks(1).rev() {
                batch.fused_into(&many, units, &mut alone);
            }
            assert_eq!(bits(&alone), whole, "unit by unit, {context}");
        }
    }
}

#[test]
fn records_agree_with_the_reference_and_nothing_else_enters() {
    for variant in variants("records_agree_with_the_reference_and_nothing_else_enters") {
        check::<bf16>(variant, KvRecordFormat::Four, &SEQUENCES);
        check::<f32>(variant, KvRecordFormat::Four, &SEQUENCES);
        // `eight_bits_have_the_bits_of_their_decoded_values` is about f32.
        check::<bf16>(variant, KvRecordFormat::Eight, &SEQUENCES);
    }
}

#[test]
fn records_of_long_sequences_agree_with_the_reference() {
    for variant in variants("records_of_long_sequences_agree_with_the_reference") {
        check::<bf16>(variant, KvRecordFormat::Four, &LONG);
        check::<bf16>(variant, KvRecordFormat::Eight, &LONG[2..3]);
    }
}

/// Records of 8 bits give the bits of a cache in f32 that holds their decoded values.
#[test]
fn eight_bits_have_the_bits_of_their_decoded_values() {
    for variant in variants("eight_bits_have_the_bits_of_their_decoded_values") {
        let kernels = roomy_kernels(variant, 2);
        for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 2, 80), (2, 2, 128), (9, 1, 256)] {
            let shape = shape(heads, kv_heads, head_dim);
            let of_records = batch::<f32>(11, KvRecordFormat::Eight, shape, &SEQUENCES);
            let ([k_fresh, v_fresh], [k, v]) = of_records.seen();
            let (units, q) = (&of_records.units[..], &of_records.q);
            let mut out = poison::<f32>(q.len());
            kernels.attention(&shape, units, q, &k_fresh, &v_fresh, &k, &v, None, &mut out);
            let found = of_records.fused(&kernels, &of_records.units);
            assert_eq!(bits(&found), bits(&out), "{variant:?} {shape:?}");
        }
    }
}

/// A row has the bits of decode over the cache that its predecessors were appended to.
#[test]
fn decode_over_the_cache_has_the_bits_of_prefill() {
    for variant in variants("decode_over_the_cache_has_the_bits_of_prefill") {
        let shapes = [(6, 2, 64), (4, 4, 80), (3, 1, 6)];
        let cases = KvRecordFormat::ALL.into_iter().flat_map(|one| shapes.map(|dims| (one, dims)));
        for (format, (heads, kv_heads, head_dim)) in cases {
            let kernels = roomy_kernels(variant, 2);
            let shape = shape(heads, kv_heads, head_dim);
            let rows = 75;
            let whole = batch::<bf16>(5, format, shape, &[(rows, 0)]);
            let expected = bits(&whole.fused(&kernels, &whole.units));
            let (q_row, kv_row) = (heads * head_dim, kv_heads * head_dim);
            let record = record_bytes(format, head_dim);
            let mut caches = [vec![0xff; kv_heads * rows * record], Vec::new()];
            caches[1] = caches[0].clone();
            let mut past = 0;
            for piece in [1, 40, 1, 1, 15, 16, 1] {
                let units: Vec<AttentionUnit> = (0..kv_heads)
                    .map(|kv_head| AttentionUnit {
                        row0: 0,
                        rows: piece as u32,
                        past: past as u32,
                        shared_row: None,
                        kv_head: kv_head as u32,
                        cache_offset: kv_head * rows * head_dim,
                        cache_positions: 0,
                        first_page: 0,
                        scores_offset: 0,
                    })
                    .collect();
                let fresh = [0, 1].map(|kv| &whole.fresh[kv][past * kv_row..][..piece * kv_row]);
                let q = &whole.q[past * q_row..][..piece * q_row];
                let mut out = poison::<bf16>(piece * q_row);
                let [k, v] = caches.each_ref().map(|cache| KvCacheSlice::Records(format, cache));
                kernels.attention(&shape, &units, q, fresh[0], fresh[1], k, v, None, &mut out);
                let expected = &expected[past * q_row..][..piece * q_row];
                assert_eq!(bits(&out), expected, "{variant:?} {shape:?} {piece} after {past}");
                for (cache, fresh) in caches.iter_mut().zip(fresh) {
                    for (at, row) in fresh.chunks(head_dim).enumerate() {
                        let position = past + at / kv_heads;
                        let to = (at % kv_heads * rows + position) * record;
                        let record = &mut cache[to..][..record];
                        quantise_kv(variant, format, row, head_dim, record);
                    }
                }
                past += piece;
            }
            assert_eq!(past, rows);
        }
    }
}

#[test]
fn shared_rows_give_the_bits_of_own_rows() {
    for variant in variants("shared_rows_give_the_bits_of_own_rows") {
        let [four, eight] = KvRecordFormat::ALL;
        for (format, (heads, kv_heads, head_dim)) in
            [(four, (6, 2, 64)), (four, (4, 4, 80)), (eight, (6, 2, 64)), (eight, (4, 4, 80))]
        {
            let kernels = roomy_kernels(variant, 2);
            let (rows, row) = (60, kv_heads * head_dim);
            let shape = shape(heads, kv_heads, head_dim);
            let mut whole = batch::<bf16>(5, format, shape, &[(rows, 0); 2]);
            for shared in [1, 16, 33, 59] {
                for fresh in &mut whole.fresh {
                    fresh.copy_within(..shared * row, rows * row);
                }
                let mut units = whole.units.clone();
                for unit in &mut units[kv_heads..] {
                    unit.row0 = (rows + shared) as u32;
                    unit.rows = (rows - shared) as u32;
                    (unit.past, unit.shared_row) = (shared as u32, Some(0));
                }
                let (actual, expected) =
                    (whole.fused(&kernels, &units), whole.fused(&kernels, &whole.units));
                let at = (rows + shared) * heads * head_dim;
                assert_eq!(bits(&actual[at..]), bits(&expected[at..]), "{variant:?} {shared}");
            }
        }
    }
}

#[test]
fn nan_and_infinities_in_queries_show() {
    for variant in variants("nan_and_infinities_in_queries_show") {
        let kernels = roomy_kernels(variant, 1);
        let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let cases = KvRecordFormat::ALL.into_iter().flat_map(|one| bad.map(|bad| (one, bad)));
        for (format, bad) in cases {
            let mut batch = batch::<f32>(3, format, shape(2, 1, 64), &[(1, 20), (1, 3)]);
            batch.q[70] = bad;
            let out = batch.fused(&kernels, &batch.units);
            assert!(
                out[64..128].iter().all(|value| value.is_nan()),
                "{format:?} {variant:?} {bad}"
            );
            assert!(out[..64].iter().chain(&out[128..]).all(|value| value.is_finite()));
        }
    }
}
