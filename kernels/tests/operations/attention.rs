//! Tests of attention: every variant against the reference, fused against separate, prefill against
//! decode, chunks against the whole, and independence of neighbours.

use crate::common::{
    Random, assert_close, bits, kernels, poison, tolerance, values_tolerance, variants,
};
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, Element, Kernels, ScratchLimits, Variant, reference, scores_len,
};

/// A batch of ragged sequences: `(fresh rows, cached positions)` each, all KV heads as units.
#[derive(Clone)]
struct Batch<T> {
    shape: AttentionShape,
    units: Vec<AttentionUnit>,
    q: Vec<T>,
    k_fresh: Vec<T>,
    v_fresh: Vec<T>,
    k_cache: Vec<T>,
    v_cache: Vec<T>,
    scores_len: usize,
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

fn batch<T: Element>(seed: u64, shape: AttentionShape, sequences: &[(usize, usize)]) -> Batch<T> {
    let mut random = Random::new(seed);
    let mut units = Vec::new();
    let (mut rows, mut cache, mut scores) = (0, 0, 0);
    for &(fresh, past) in sequences {
        for kv_head in 0..shape.kv_heads {
            units.push(AttentionUnit {
                row0: rows as u32,
                rows: fresh as u32,
                past: past as u32,
                shared_row: None,
                kv_head: kv_head as u32,
                cache_offset: cache,
                cache_positions: 0,
                first_page: 0,
                scores_offset: scores,
            });
            // Space for the fresh rows to be appended, followed by an odd gap.
            cache += (past + fresh + 1) * shape.head_dim + 3;
            scores += scores_len(&shape, fresh, past);
        }
        rows += fresh;
    }
    let kv = rows * shape.kv_heads * shape.head_dim;
    let mut cached = || {
        // Memory after the cached positions must not be read.
        let mut cached = poison::<T>(cache);
        for unit in &units {
            let len = unit.past as usize * shape.head_dim;
            let values = random.vector(len);
            cached[unit.cache_offset..][..len].copy_from_slice(&values);
        }
        cached
    };
    let (k_cache, v_cache) = (cached(), cached());
    Batch {
        q: random.vector(rows * shape.heads * shape.head_dim),
        k_fresh: random.vector(kv),
        v_fresh: random.vector(kv),
        k_cache,
        v_cache,
        scores_len: scores,
        shape,
        units,
    }
}

impl<T: Element> Batch<T> {
    fn fused(&self, kernels: &Kernels, units: &[AttentionUnit]) -> Vec<T> {
        let mut out = poison::<T>(self.q.len());
        self.fused_into(kernels, units, &mut out);
        out
    }

    fn fused_into(&self, kernels: &Kernels, units: &[AttentionUnit], out: &mut [T]) {
        let (k, v) = ((&self.k_fresh, &self.k_cache), (&self.v_fresh, &self.v_cache));
        kernels.attention(&self.shape, units, &self.q, k.0, v.0, k.1, v.1, None, out);
    }

    /// Returns `(probabilities, values)` of the three separate operations.
    fn separate(&self, kernels: &Kernels) -> (Vec<f32>, Vec<T>) {
        let (shape, units) = (&self.shape, &self.units[..]);
        let mut scores = poison::<f32>(self.scores_len);
        let mut probabilities = poison::<f32>(self.scores_len);
        let mut out = poison::<T>(self.q.len());
        kernels.scores(shape, units, &self.q, &self.k_fresh, &self.k_cache, &mut scores);
        kernels.softmax(shape, units, &scores, None, &mut probabilities);
        kernels.weighted_values(
            shape,
            units,
            &probabilities,
            &self.v_fresh,
            &self.v_cache,
            &mut out,
        );
        (probabilities, out)
    }
}

const SHAPES: [(usize, usize, usize); 9] = [
    (1, 1, 6),
    (3, 3, 64),
    (9, 3, 64),
    (4, 2, 80),
    (7, 1, 128),
    (5, 5, 16),
    (2, 1, 33),
    (4, 1, 96),
    (9, 1, 31),
];
/// Fresh rows and cached positions around the edges of vectors, blocks of rows and of positions.
const SEQUENCES: [(usize, usize); 22] = [
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
    (47, 0),
    (48, 1),
    (49, 0),
    (2, 63),
];

fn check_reference<T: Element>(name: &str) {
    for variant in variants(name) {
        let kernels = kernels(variant, 2);
        for (seed, (heads, kv_heads, head_dim)) in SHAPES.into_iter().enumerate() {
            let batch = batch::<T>(seed as u64, shape(heads, kv_heads, head_dim), &SEQUENCES);
            let (probabilities, out) = batch.separate(&kernels);
            let context = format!("seed {seed} {variant:?} {:?}", batch.shape);
            assert_eq!(bits(&out), bits(&batch.fused(&kernels, &batch.units)), "fused, {context}");
            for unit in &batch.units {
                let context = format!("{context} {unit:?}");
                check_unit(variant, &batch, unit, (&probabilities, &out), &context);
            }
        }
    }
}

fn check_unit<T: Element>(
    variant: Variant,
    batch: &Batch<T>,
    unit: &AttentionUnit,
    (probabilities, out): (&[f32], &[T]),
    context: &str,
) {
    let AttentionShape { heads, head_dim, .. } = batch.shape;
    let group = batch.shape.group();
    let k = reference::KvSlices { fresh: &batch.k_fresh, cache: &batch.k_cache };
    let v = reference::KvSlices { fresh: &batch.v_fresh, cache: &batch.v_cache };
    let expected = reference::attention(&batch.shape, unit, &batch.q, k, v, None);
    let stride = (unit.past + unit.rows) as usize;
    for (query, (expected_probabilities, expected)) in expected.iter().enumerate() {
        let at = unit.scores_offset + query * stride;
        let visible = expected_probabilities.len();
        let actual = &probabilities[at..at + visible];
        assert_close(actual, expected_probabilities, (visible, 1.0), tolerance(), context);
        let hidden = &probabilities[at + visible..at + stride];
        assert!(
            hidden.iter().all(|value| value.is_nan()),
            "{context}: hidden entries were written"
        );
        let row = unit.row0 as usize + query / group;
        let head = unit.kv_head as usize * group + query % group;
        let actual = &out[(row * heads + head) * head_dim..][..head_dim];
        assert_close(actual, expected, (head_dim, 0.1), values_tolerance::<T>(variant), context);
    }
}

#[test]
fn bf16_agrees_with_the_reference_and_fused_is_bit_equal() {
    check_reference::<bf16>("bf16_agrees_with_the_reference_and_fused_is_bit_equal");
}

#[test]
fn f32_agrees_with_the_reference_and_fused_is_bit_equal() {
    check_reference::<f32>("f32_agrees_with_the_reference_and_fused_is_bit_equal");
}

#[test]
fn threads_and_chunks_of_units_change_no_bit() {
    for variant in variants("threads_and_chunks_of_units_change_no_bit") {
        let one = kernels(variant, 1);
        let three = kernels(variant, 3);
        for (seed, (heads, kv_heads, head_dim)) in SHAPES.into_iter().enumerate() {
            let batch = batch::<bf16>(seed as u64, shape(heads, kv_heads, head_dim), &SEQUENCES);
            let whole = bits(&batch.fused(&one, &batch.units));
            assert_eq!(bits(&batch.fused(&three, &batch.units)), whole, "{variant:?}");
            assert_eq!(bits(&batch.separate(&three).1), whole, "{variant:?}");
            for chunk in [1, 2, 5] {
                let mut out = poison::<bf16>(batch.q.len());
                for units in batch.units.chunks(chunk).rev() {
                    batch.fused_into(&three, units, &mut out);
                }
                assert_eq!(bits(&out), whole, "{variant:?} chunks of {chunk}");
            }
        }
    }
}

/// Compares a prompt computed at once with the same rows one by one or in pieces over a growing
/// cache.
fn check_decode<T: Element>(name: &str) {
    for variant in variants(name) {
        for (threads, (heads, kv_heads, head_dim)) in
            [(1, (6, 2, 64)), (2, (4, 4, 80)), (3, (3, 1, 6))]
        {
            let kernels = kernels(variant, threads);
            let shape = shape(heads, kv_heads, head_dim);
            let rows = 75;
            let whole = batch::<T>(5, shape, &[(rows, 0)]);
            let expected = bits(&whole.fused(&kernels, &whole.units));
            // Rounding the outputs hides many of the differences that scores may have.
            let mut expected_scores = poison::<f32>(whole.scores_len);
            let (k_fresh, k_cache) = (&whole.k_fresh, &whole.k_cache);
            kernels.scores(&shape, &whole.units, &whole.q, k_fresh, k_cache, &mut expected_scores);
            let (q_row, kv_row) = (heads * head_dim, kv_heads * head_dim);
            let mut k_cache = poison::<T>(kv_heads * rows * head_dim);
            let mut v_cache = k_cache.clone();
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
                        scores_offset: kv_head * scores_len(&shape, piece, past),
                    })
                    .collect();
                let k_fresh = &whole.k_fresh[past * kv_row..][..piece * kv_row];
                let v_fresh = &whole.v_fresh[past * kv_row..][..piece * kv_row];
                let q = &whole.q[past * q_row..][..piece * q_row];
                let mut out = poison::<T>(piece * q_row);
                kernels.attention(
                    &shape, &units, q, k_fresh, v_fresh, &k_cache, &v_cache, None, &mut out,
                );
                let expected = &expected[past * q_row..][..piece * q_row];
                let context = format!("{variant:?} {shape:?} {piece} rows after {past}");
                assert_eq!(bits(&out), expected, "{context}");
                let mut scores = poison::<f32>(kv_heads * scores_len(&shape, piece, past));
                kernels.scores(&shape, &units, q, k_fresh, &k_cache, &mut scores);
                for (unit, whole) in units.iter().zip(&whole.units) {
                    for query in 0..piece * shape.group() {
                        let seen = past + query / shape.group() + 1;
                        let at = unit.scores_offset + query * (past + piece);
                        let there = whole.scores_offset + (past * shape.group() + query) * rows;
                        let (actual, expected) =
                            (&scores[at..][..seen], &expected_scores[there..][..seen]);
                        assert_eq!(bits(actual), bits(expected), "scores, {context}");
                    }
                }
                kernels.append(&shape, &units, k_fresh, &mut k_cache);
                kernels.append(&shape, &units, v_fresh, &mut v_cache);
                past += piece;
            }
            assert_eq!(past, rows);
        }
    }
}

#[test]
fn decode_over_the_cache_has_the_bits_of_prefill() {
    check_decode::<bf16>("decode_over_the_cache_has_the_bits_of_prefill");
    check_decode::<f32>("decode_over_the_cache_has_the_bits_of_prefill");
}

/// Compares positions that are rows of another sequence with rows of the sequence's own.
fn check_shared<T: Element>(test: &str) {
    for variant in variants(test) {
        let kernels = kernels(variant, 2);
        for (shape, rows, shared) in [
            (shape(4, 2, 80), 40, [1, 17, 39]),
            (shape(3, 3, 64), 35, [15, 16, 34]),
            (shape(2, 1, 64), 700, [33, 512, 699]),
        ] {
            let mut whole = batch::<T>(9, shape, &[(5, 0), (rows, 0), (rows, 0)]);
            let row = shape.kv_heads * shape.head_dim;
            for shared in shared {
                let (first, second) = (5, 5 + rows);
                for fresh in [&mut whole.k_fresh, &mut whole.v_fresh] {
                    fresh.copy_within(first * row..(first + shared) * row, second * row);
                }
                let mut units = whole.units.clone();
                for unit in &mut units[2 * shape.kv_heads..] {
                    unit.row0 = (second + shared) as u32;
                    unit.rows = (rows - shared) as u32;
                    (unit.past, unit.shared_row) = (shared as u32, Some(first as u32));
                }
                let expected = whole.fused(&kernels, &whole.units);
                // The rows' own K and V must not be read.
                let mut poisoned = whole.clone();
                for fresh in [&mut poisoned.k_fresh, &mut poisoned.v_fresh] {
                    fresh[second * row..][..shared * row].copy_from_slice(&poison(shared * row));
                }
                let actual = poisoned.fused(&kernels, &units);
                let at = (second + shared) * shape.heads * shape.head_dim;
                assert_eq!(
                    bits(&actual[at..]),
                    bits(&expected[at..]),
                    "{variant:?} {shape:?} {shared}"
                );
                let mut cache = poison::<T>(whole.k_cache.len());
                let mut expected = cache.clone();
                kernels.append(&shape, &whole.units, &whole.k_fresh, &mut expected);
                kernels.append(&shape, &units, &poisoned.k_fresh, &mut cache);
                assert_eq!(bits(&cache), bits(&expected), "appended");
            }
        }
    }
}

#[test]
fn shared_rows_give_the_bits_of_own_rows() {
    check_shared::<bf16>("shared_rows_give_the_bits_of_own_rows");
    check_shared::<f32>("shared_rows_give_the_bits_of_own_rows");
}

#[test]
fn a_sequence_does_not_depend_on_its_neighbours() {
    for variant in variants("a_sequence_does_not_depend_on_its_neighbours") {
        let kernels = kernels(variant, 2);
        let shape = shape(6, 3, 80);
        let whole = batch::<bf16>(31, shape, &SEQUENCES);
        let together = whole.fused(&kernels, &whole.units);
        for sequence in whole.units.chunks(3) {
            let (row0, rows) = (sequence[0].row0 as usize, sequence[0].rows as usize);
            let units: Vec<AttentionUnit> =
                sequence.iter().map(|unit| AttentionUnit { row0: 0, ..*unit }).collect();
            let part = |values: &[bf16], row: usize| values[row0 * row..][..rows * row].to_vec();
            let alone = Batch {
                shape,
                units,
                q: part(&whole.q, 6 * 80),
                k_fresh: part(&whole.k_fresh, 3 * 80),
                v_fresh: part(&whole.v_fresh, 3 * 80),
                k_cache: whole.k_cache.clone(),
                v_cache: whole.v_cache.clone(),
                scores_len: 0,
            };
            let out = alone.fused(&kernels, &alone.units);
            assert_eq!(bits(&out), bits(&part(&together, 6 * 80)), "{variant:?} {sequence:?}");
        }
    }
}

/// Sequences longer than a chunk of positions, around its edges.
const LONG: [(usize, usize); 6] =
    [(1, 1022), (1, 1023), (1, 1024), (1, 2500), (1, 3071), (3, 1023)];

/// Returns kernels with scratch for a few thousand positions.
fn long_kernels(variant: Variant, threads: usize) -> Kernels {
    let limits =
        ScratchLimits { rows: 1, linear_inputs: 64, positions: 3200, group: 9, head_dim: 128 };
    Kernels::new(variant, threads, limits).expect("threads start")
}

fn check_split<T: Element>(variant: Variant) {
    let one = long_kernels(variant, 1);
    for (seed, (heads, kv_heads, head_dim)) in
        [(4, 2, 64), (3, 3, 80), (9, 1, 128)].into_iter().enumerate()
    {
        // Decode alone, which is split into chunks, and a mixture, which is not.
        for sequences in [&LONG[..5], &LONG[..]] {
            let batch = batch::<T>(seed as u64, shape(heads, kv_heads, head_dim), sequences);
            let (probabilities, out) = batch.separate(&one);
            let (probabilities_bits, whole) = (bits(&probabilities), bits(&out));
            let context = format!("{variant:?} {:?} of {} sequences", batch.shape, sequences.len());
            assert_eq!(bits(&batch.fused(&one, &batch.units)), whole, "fused, {context}");
            for unit in &batch.units {
                check_unit(variant, &batch, unit, (&probabilities, &out), &context);
            }
            for threads in [2, 3, 9] {
                let many = long_kernels(variant, threads);
                let context = format!("{threads} threads, {context}");
                assert_eq!(bits(&batch.fused(&many, &batch.units)), whole, "fused, {context}");
                let (probabilities, out) = batch.separate(&many);
                assert_eq!(bits(&probabilities), probabilities_bits, "{context}");
                assert_eq!(bits(&out), whole, "{context}");
                // A unit alone is split where the whole batch need not be.
                let mut alone = poison::<T>(batch.q.len());
                for unit in batch.units.chunks(1) {
                    batch.fused_into(&many, unit, &mut alone);
                }
                assert_eq!(bits(&alone), whole, "alone, {context}");
            }
        }
    }
}

#[test]
fn cutting_units_into_chunks_of_positions_changes_no_bit() {
    for variant in variants("cutting_units_into_chunks_of_positions_changes_no_bit") {
        check_split::<bf16>(variant);
        check_split::<f32>(variant);
    }
}

#[test]
fn softmax_survives_large_scores_and_shows_nan() {
    for variant in variants("softmax_survives_large_scores_and_shows_nan") {
        let kernels = kernels(variant, 1);
        let shape = shape(1, 1, 4);
        let unit = AttentionUnit {
            row0: 0,
            rows: 1,
            past: 19,
            shared_row: None,
            kv_head: 0,
            cache_offset: 0,
            cache_positions: 0,
            first_page: 0,
            scores_offset: 0,
        };
        let mut scores = vec![-30_000.0f32; 20];
        (scores[3], scores[17]) = (30_000.0, 30_000.0);
        let mut out = poison::<f32>(20);
        kernels.softmax(&shape, &[unit], &scores, None, &mut out);
        for (position, probability) in out.iter().enumerate() {
            let expected = if position == 3 || position == 17 { 0.5 } else { 0.0 };
            assert_eq!(*probability, expected, "{variant:?} position {position}");
        }
        for position in [0, 7, 18] {
            let mut scores = vec![0.25f32; 20];
            scores[position] = f32::NAN;
            kernels.softmax(&shape, &[unit], &scores, None, &mut out);
            assert!(out.iter().all(|value| value.is_nan()), "{variant:?} NaN at {position}");
        }
    }
}
