//! Tests of layers with Mamba2 against the reference, and of the independence of their rows of
//! chunks, neighbours and threads.

use std::time::Duration;

use crate::common::{assert_close, bits, kernels, tolerance, variants};
use crate::mamba_case::{Case, EPS, MAMBAS};
use half::bf16;
use kernels::{Element, Kernels, StateRows, Variant, reference};
use model::mamba::Mamba;

/// Errors of sums over rows accumulate for as long as the state remembers them.
const SCAN_TOLERANCE: f64 = 10.0;

fn sharing(variant: Variant, threads: usize) -> Kernels {
    let kernels = kernels(variant, threads);
    kernels.set_spin(Duration::from_micros(20));
    kernels
}

fn rows_of(rows: usize, slot: u32, past: usize) -> [StateRows; 1] {
    [StateRows { row0: 0, rows: rows as u32, slot, past: past as u32, drafts: 0 }]
}

/// Returns the norms of the groups of each row of a kernel's result.
fn normed<T: Element>(case: &Case<T>, read: &[T]) -> Vec<f64> {
    let (inner, width) = (case.mamba.inner_size(), case.mamba.inner_size() / case.mamba.groups);
    let groups = read.chunks(width).enumerate().map(|(group, values)| {
        let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
        let gain = &case.gain[group * width % inner..][..width];
        reference::rms_norm(&values, gain, f64::from(EPS))
    });
    groups.flatten().collect()
}

fn check_reference<T: Element>(name: &str) {
    for variant in variants(name) {
        for (seed, mamba) in MAMBAS.into_iter().enumerate() {
            let context = format!("{variant:?} {mamba:?}");
            let case = Case::<T>::new(mamba, 9, seed as u64);
            let found = case.run(&sharing(variant, 3), &rows_of(9, 1, 0), &mut case.states(2));
            let expected =
                reference::mamba_convolution(&mamba, &case.input, &case.weight, case.bias());
            let row = (mamba.channels(), 0.5);
            assert_close(&found.convolved, &expected, row, tolerance(), &context);
            let expected = reference::mamba_scan(&mamba, &case.mixed, &case.input, &case.numbers);
            let row = (mamba.inner_size(), 0.5);
            let scan_tolerance = SCAN_TOLERANCE * tolerance();
            assert_close(&found.read, &expected, row, scan_tolerance, &context);
            let expected = normed(&case, &found.read);
            assert_close(&found.normed, &expected, row, tolerance(), &context);
        }
    }
}

#[test]
fn layers_agree_with_the_reference() {
    check_reference::<f32>("layers_agree_with_the_reference");
    check_reference::<bf16>("layers_agree_with_the_reference");
}

fn check_chunks<T: Element>(name: &str) {
    for variant in variants(name) {
        for (seed, mamba) in MAMBAS.into_iter().enumerate() {
            let case = Case::<T>::new(mamba, 11, seed as u64);
            let whole = case.run(&kernels(variant, 1), &rows_of(11, 0, 0), &mut case.states(1));
            for cuts in [&[0, 1, 2, 3, 11][..], &[0, 5, 11], &[0, 2, 4, 5, 10, 11]] {
                let (mut states, sharing) = (case.states(3), sharing(variant, 2));
                for pair in cuts.windows(2) {
                    let rows = rows_of(pair[1] - pair[0], 2, pair[0]);
                    let found = case.part(pair[0]..pair[1]).run(&sharing, &rows, &mut states);
                    let context = format!("{variant:?} {mamba:?} {cuts:?} from {}", pair[0]);
                    let rows_of =
                        |all: &[T], width: usize| bits(&all[pair[0] * width..pair[1] * width]);
                    let (channels, inner) = (mamba.channels(), mamba.inner_size());
                    assert_eq!(
                        bits(&found.convolved),
                        rows_of(&whole.convolved, channels),
                        "{context}"
                    );
                    assert_eq!(bits(&found.read), rows_of(&whole.read, inner), "{context}");
                    assert_eq!(bits(&found.normed), rows_of(&whole.normed, inner), "{context}");
                }
            }
        }
    }
}

#[test]
fn chunks_have_the_bits_of_whole_sequences() {
    check_chunks::<f32>("chunks_have_the_bits_of_whole_sequences");
    check_chunks::<bf16>("chunks_have_the_bits_of_whole_sequences");
}

#[test]
fn sequences_do_not_depend_on_neighbours_slots_or_what_was_there() {
    for variant in variants("sequences_do_not_depend_on_neighbours_slots_or_what_was_there") {
        for (seed, mamba) in MAMBAS.into_iter().enumerate() {
            let case = Case::<bf16>::new(mamba, 12, seed as u64);
            let rows = [(0u32, 5u32, 3u32), (5, 1, 0), (6, 6, 2)];
            let all =
                rows.map(|(row0, rows, slot)| StateRows { row0, rows, slot, past: 0, drafts: 0 });
            // The state of an earlier sequence, and an unused slot in between.
            let mut states = case.states(4);
            states.inputs.fill(f32::NAN);
            states.states.fill(f32::NAN);
            let found = case.run(&sharing(variant, 3), &all, &mut states);
            for StateRows { row0, rows, .. } in all {
                let range = row0 as usize..(row0 + rows) as usize;
                let part = case.part(range.clone());
                let one = rows_of(rows as usize, 0, 0);
                let alone = part.run(&kernels(variant, 1), &one, &mut case.states(1));
                let (channels, inner) = (mamba.channels(), mamba.inner_size());
                let convolved = &found.convolved[range.start * channels..range.end * channels];
                let read = &found.read[range.start * inner..range.end * inner];
                assert_eq!(bits(&alone.convolved), bits(convolved), "{variant:?} {mamba:?}");
                assert_eq!(bits(&alone.read), bits(read), "{variant:?} {mamba:?}");
            }
            let untouched = &states.states[mamba.state_len()..2 * mamba.state_len()];
            assert!(untouched.iter().all(|value| value.is_nan()), "no sequence has slot 1");
        }
    }
}

/// States that keep nothing or everything, and numbers beyond the range of an exponential.
#[test]
fn extreme_rates_keep_states_finite() {
    let mamba = Mamba { max_step: Some(2.0), ..MAMBAS[1] };
    for variant in variants("extreme_rates_keep_states_finite") {
        for (rate, bias) in [(-100.0, 0.0), (100.0, 0.0), (0.0, 200.0), (0.0, -200.0)] {
            let mut case = Case::<f32>::new(mamba, 40, 3);
            case.numbers[..mamba.heads].fill(rate);
            case.numbers[mamba.heads..2 * mamba.heads].fill(bias);
            let found = case.run(&kernels(variant, 1), &rows_of(40, 0, 0), &mut case.states(1));
            let is_finite = found.normed.iter().all(|value| value.is_finite());
            assert!(is_finite, "{variant:?} {rate} {bias}");
        }
    }
}
