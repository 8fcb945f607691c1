//! Tests of attention sinks: every variant against the reference, fused against separate, and the
//! effect of a sink on the probabilities of its head alone.

use crate::common::{bits, poison, variants};
use crate::sequences::{EIGHT, FOUR, Options, batch, roomy_kernels};
use half::bf16;
use kernels::{Element, Kernels, Variant};
use model::quantized_format::KvRecordFormat;

/// gpt-oss has groups of eight and heads of 64; the others are small and odd.
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 1, 6), (16, 2, 64), (3, 3, 80), (6, 2, 128), (16, 1, 256)];
const SEQUENCES: [(usize, usize); 8] =
    [(1, 0), (1, 1), (1, 15), (3, 16), (1, 127), (1, 128), (1, 300), (33, 40)];

fn check<T: Element>(
    one: &Kernels,
    three: &Kernels,
    window: Option<u32>,
    format: Option<KvRecordFormat>,
) {
    for (seed, dims) in SHAPES.into_iter().enumerate() {
        let options = Options { window, places: window.unwrap_or(0), format, sinks: true };
        let mut batch = batch::<T>(seed as u64, dims, &SEQUENCES, options);
        let context = format!("{:?} {dims:?} {options:?}", one.variant());
        let (probabilities, out) = batch.separate(one);
        batch.check_reference(one.variant(), (&probabilities, &out), &context);
        assert_eq!(bits(&batch.fused(one, &batch.units)), bits(&out), "fused, {context}");
        assert_eq!(bits(&batch.fused(three, &batch.units)), bits(&out), "threads, {context}");
        // A sink of zero weight has no effect.
        batch.sinks = Some(vec![f32::NEG_INFINITY; dims.0]);
        let nothing = batch.separate(three);
        batch.sinks = None;
        let without = batch.separate(three);
        assert_eq!(bits(&nothing.0), bits(&without.0), "{context}");
        assert_eq!(bits(&nothing.1), bits(&without.1), "{context}");
        assert_ne!(bits(&without.1), bits(&out), "sinks take their part, {context}");
    }
}

#[test]
fn sinks_agree_with_the_reference() {
    for variant in variants("sinks_agree_with_the_reference") {
        let (one, three) = (roomy_kernels(variant, 1), roomy_kernels(variant, 3));
        for window in [None, Some(16), Some(128)] {
            check::<bf16>(&one, &three, window, None);
            check::<bf16>(&one, &three, window, FOUR);
        }
        check::<bf16>(&one, &three, Some(16), EIGHT);
        check::<f32>(&one, &three, None, None);
    }
}

#[test]
fn sinks_of_long_sequences_agree_with_the_reference_in_chunks_too() {
    for variant in variants("sinks_of_long_sequences_agree_with_the_reference_in_chunks_too") {
        let options = Options { sinks: true, ..Options::default() };
        let batch = batch::<bf16>(2, (8, 2, 64), &[(1, 1023), (1, 1024), (1, 3100)], options);
        let (probabilities, out) = batch.separate(&roomy_kernels(variant, 1));
        batch.check_reference(variant, (&probabilities, &out), &format!("{variant:?}"));
        for threads in [1, 2, 5] {
            let kernels = roomy_kernels(variant, threads);
            let mut alone = poison::<bf16>(batch.q.len());
            for unit in batch.units.chunks(1) {
                batch.fused_into(&kernels, unit, &mut alone);
            }
            assert_eq!(bits(&alone), bits(&out), "{variant:?} on {threads} threads");
            assert_eq!(bits(&batch.separate(&kernels).0), bits(&probabilities), "{variant:?}");
        }
    }
}

/// A sink far above all scores: probabilities shrink and do not overflow. A NaN sink shows in its
/// head and in no other.
#[test]
fn large_and_bad_sinks_show_in_their_own_head() {
    for variant in variants("large_and_bad_sinks_show_in_their_own_head") {
        let kernels = roomy_kernels(variant, 1);
        let options = Options { sinks: true, ..Options::default() };
        let mut batch = batch::<f32>(6, (4, 2, 8), &[(1, 20), (2, 0)], options);
        let before = batch.fused(&kernels, &batch.units);
        let heads = |values: &[f32], head: usize| -> Vec<u32> {
            values.chunks(8).skip(head).step_by(4).flat_map(bits).collect()
        };
        for (sink, expected) in [(1e30, 0.0), (f32::NAN, f32::NAN)] {
            let mut sinks = batch.sinks.clone().expect("there are sinks");
            sinks[2] = sink;
            let kept = batch.sinks.replace(sinks);
            let after = batch.fused(&kernels, &batch.units);
            batch.sinks = kept;
            for head in [0, 1, 3] {
                assert_eq!(heads(&after, head), heads(&before, head), "{variant:?} {sink}");
            }
            for value in after.chunks(8).skip(2).step_by(4).flatten() {
                let is_expected = if expected == 0.0 { *value == 0.0 } else { value.is_nan() };
                assert!(is_expected, "{variant:?} {sink}: {value}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "there is a sink for each query head")]
fn a_wrong_number_of_sinks_is_refused() {
    let options = Options { sinks: true, ..Options::default() };
    let mut batch = batch::<f32>(6, (4, 2, 8), &[(1, 20)], options);
    batch.sinks = Some(vec![0.0; 2]);
    batch.fused(&roomy_kernels(Variant::Scalar, 1), &batch.units);
}
