//! Tests of attention over several chunks of positions: prompts in pieces across their ends against
//! the whole, scores that differ by hundreds from chunk to chunk, and values that a row must not
//! see.

use crate::common::{bits, poison, variants};
use crate::sequences::{Batch, EIGHT, FOUR, Options, batch, in_pieces, roomy_kernels};
use half::bf16;
use kernels::{Element, Kernels, ScratchLimits, Variant};

/// Compares a prompt at once with pieces around the ends of chunks and of pairs of positions, over
/// a growing cache; each piece fused and separate.
fn check_pieces<T: Element>(variant: Variant, dims: (usize, usize, usize), options: Options) {
    let kernels = roomy_kernels(variant, 2);
    let whole = batch::<T>(17, dims, &[(1040, 0)], Options { places: 0, ..options });
    let expected = whole.fused(&kernels, &whole.units);
    let pieces = [701, 1, 321, 1, 1, 2, 3, 10].map(|rows| vec![rows]);
    let actual = in_pieces(&whole, &kernels, &pieces, options.places);
    assert!(bits(&actual) == bits(&expected), "{variant:?} {dims:?} {options:?}");
}

#[test]
fn pieces_across_the_ends_of_chunks_have_the_bits_of_the_whole() {
    for variant in variants("pieces_across_the_ends_of_chunks_have_the_bits_of_the_whole") {
        let plain = Options::default();
        let window = Options { window: Some(601), places: 1400, sinks: true, ..plain };
        check_pieces::<bf16>(variant, (4, 1, 64), plain);
        check_pieces::<bf16>(variant, (3, 3, 80), window);
        check_pieces::<f32>(variant, (2, 1, 64), plain);
        check_pieces::<bf16>(variant, (4, 1, 64), Options { format: FOUR, ..plain });
        check_pieces::<bf16>(variant, (4, 1, 64), Options { format: EIGHT, ..plain });
    }
}

/// Returns queries that make scores of many hundreds, so that whole chunks have no weight relative
/// to others.
fn steep<T: Element>(options: Options) -> Batch<T> {
    let sequences = [(1, 1023), (1, 1024), (1, 3100), (5, 2046), (70, 1000)];
    let mut batch = batch::<T>(23, (6, 2, 64), &sequences, options);
    for (index, value) in batch.q.iter_mut().enumerate() {
        *value = T::from_f32(value.to_f32() * [1.0, 30.0, 1000.0][index / 64 % 3]);
    }
    batch
}

#[test]
fn chunks_that_weigh_little_change_no_bit() {
    for variant in variants("chunks_that_weigh_little_change_no_bit") {
        for (format, sink) in
            [(None, None), (None, Some(700.0)), (FOUR, None), (EIGHT, None), (None, Some(60.0))]
        {
            let mut batch = steep::<bf16>(Options { format, ..Options::default() });
            batch.sinks = sink.map(|sink| vec![sink; batch.shape.heads]);
            let one = roomy_kernels(variant, 1);
            let (_, out) = batch.separate(&one);
            let context = format!("{variant:?} {format:?} {sink:?}");
            assert!(out.iter().all(|value| value.to_f32().is_finite()), "{context}");
            for threads in [1, 3] {
                let many = roomy_kernels(variant, threads);
                assert_eq!(bits(&batch.fused(&many, &batch.units)), bits(&out), "{context}");
                // A unit alone is split into its chunks.
                let mut alone = poison::<bf16>(batch.q.len());
                for units in batch.units.chunks(1) {
                    batch.fused_into(&many, units, &mut alone);
                }
                assert_eq!(bits(&alone), bits(&out), "alone, {context}");
            }
        }
    }
}

/// NaN in the values of a later row does not reach an earlier one.
#[test]
fn values_behind_a_row_do_not_reach_it() {
    for variant in variants("values_behind_a_row_do_not_reach_it") {
        let kernels = roomy_kernels(variant, 2);
        for rows in [2, 3, 40, 41] {
            let mut batch = batch::<bf16>(3, (4, 2, 64), &[(rows, 7)], Options::default());
            let expected = batch.fused(&kernels, &batch.units);
            let (kv_row, q_row) = (2 * 64, 4 * 64);
            for bad in 1..rows {
                let fresh = batch.fresh[1].clone();
                batch.fresh[1][bad * kv_row..][..kv_row].fill(bf16::NAN);
                let actual = batch.fused(&kernels, &batch.units);
                let before = bad * q_row;
                assert_eq!(bits(&actual[..before]), bits(&expected[..before]), "{variant:?} {bad}");
                let own = &actual[before..before + q_row];
                assert!(own.iter().all(|value| value.is_nan()), "{variant:?} {bad}");
                batch.fresh[1] = fresh;
            }
        }
    }
}

/// A NaN key shows in all rows that see it, in the separate operations and in the fused one.
#[test]
fn what_is_no_number_shows_in_every_form() {
    for variant in variants("what_is_no_number_shows_in_every_form") {
        let kernels = roomy_kernels(variant, 2);
        for rows in [1, 5, 40] {
            let mut batch = batch::<bf16>(3, (4, 2, 64), &[(rows, 1020)], Options::default());
            let bad = rows / 2;
            batch.fresh[0][bad * 2 * 64..][..2 * 64].fill(bf16::NAN);
            let (_, separate) = batch.separate(&kernels);
            for out in [separate, batch.fused(&kernels, &batch.units)] {
                let (before, behind) = out.split_at(bad * 4 * 64);
                assert!(before.iter().all(|value| value.is_finite()), "{variant:?} {rows}");
                assert!(behind.iter().all(|value| value.is_nan()), "{variant:?} {rows}");
            }
        }
    }
}

/// A quantised cache of a very long sequence, which all threads read in parts: within the tolerance
/// of the format of the exact result for the same keys and values.
#[test]
fn one_long_sequence_of_records_agrees_with_the_reference() {
    for variant in variants("one_long_sequence_of_records_agrees_with_the_reference") {
        let past = 40_001;
        let limits = ScratchLimits {
            rows: 1,
            linear_inputs: 1,
            positions: past + 1,
            group: 4,
            head_dim: 64,
        };
        for format in [FOUR, EIGHT] {
            let options = Options { format, ..Options::default() };
            let mut batch = batch::<bf16>(41, (4, 1, 64), &[(1, past)], options);
            // Makes some positions weigh more than all others, wherever they are.
            batch.q.iter_mut().for_each(|value| *value = bf16::from_f32(3.0 * value.to_f32()));
            let one = Kernels::new(variant, 1, limits).expect("threads start");
            let (probabilities, out) = batch.separate(&one);
            let context = format!("{variant:?} {format:?}");
            batch.check_reference(variant, (&probabilities, &out), &context);
            for threads in [1, 2, 5] {
                let many = Kernels::new(variant, threads, limits).expect("threads start");
                let fused = batch.fused(&many, &batch.units);
                assert_eq!(bits(&fused), bits(&out), "{context}, {threads} threads");
            }
        }
    }
}
