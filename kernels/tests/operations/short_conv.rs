//! Tests of short convolutions against the reference, and of the independence of their rows of
//! chunks, neighbours and threads.

use std::time::Duration;

use crate::common::{Random, assert_close, bits, kernels, poison, tolerance, variants};
use half::bf16;
use kernels::{Element, Kernels, StateRows, StateSlots, Variant, reference};
use model::short_conv::ShortConv;

/// Widths below, at and above those of vectors and of tasks, few and many taps.
const CONVOLUTIONS: [ShortConv; 6] = [
    ShortConv { channels: 1, taps: 2 },
    ShortConv { channels: 7, taps: 3 },
    ShortConv { channels: 64, taps: 3 },
    ShortConv { channels: 33, taps: 1 },
    ShortConv { channels: 95, taps: 4 },
    ShortConv { channels: 1100, taps: 3 },
];

fn sharing(variant: Variant, threads: usize) -> Kernels {
    let kernels = kernels(variant, threads);
    kernels.set_spin(Duration::from_micros(20));
    kernels
}

/// Rows of a layer, of any sequences.
struct Case<T> {
    conv: ShortConv,
    draft_positions: usize,
    input: Vec<T>,
    weight: Vec<f32>,
}

impl<T: Element> Case<T> {
    fn new(conv: ShortConv, rows: usize) -> Case<T> {
        let mut random = Random::new(conv.channels as u64);
        let (input, weight) = (rows * conv.input_size(), conv.taps * conv.channels);
        let (input, weight) = (random.vector(input), random.vector(weight));
        Case { conv, draft_positions: 0, input, weight }
    }

    fn state(&self, slots: usize) -> Vec<f32> {
        vec![0.0; slots * self.conv.inputs_len(self.draft_positions)]
    }

    /// Runs the rows starting at `first`, as many as the sequences have.
    fn run(
        &self,
        kernels: &Kernels,
        first: usize,
        sequences: &[StateRows],
        state: &mut [f32],
    ) -> Vec<T> {
        let rows = sequences.iter().map(|one| one.rows as usize).sum::<usize>();
        let size = self.conv.input_size();
        let mut out = poison(rows * self.conv.channels);
        let input = &self.input[first * size..][..rows * size];
        let slots = StateSlots::new(state, self.draft_positions);
        kernels.short_convolution(&self.conv, sequences, input, &self.weight, slots, &mut out);
        out
    }
}

fn rows_of(rows: u32, slot: u32, past: usize) -> [StateRows; 1] {
    [StateRows { row0: 0, rows, slot, past: past as u32, drafts: 0 }]
}

fn check_reference<T: Element>(name: &str) {
    for variant in variants(name) {
        for conv in CONVOLUTIONS {
            let case = Case::<T>::new(conv, 9);
            let mut state = case.state(2);
            let found = case.run(&sharing(variant, 3), 0, &rows_of(9, 1, 0), &mut state);
            let expected = reference::short_convolution(&conv, &case.input, &case.weight);
            let context = format!("{variant:?} {conv:?}");
            assert_close(&found, &expected, (conv.channels, 0.5), tolerance(), &context);
            // The state has the last products.
            let size = conv.input_size();
            for row in 9 - (conv.taps - 1)..9 {
                let place = row % (conv.taps - 1);
                let row = &case.input[row * size..][..size];
                let kept = &state[conv.inputs_len(0) + place * conv.channels..][..conv.channels];
                for (channel, kept) in kept.iter().enumerate() {
                    let (b, x) = (row[channel].to_f32(), row[2 * conv.channels + channel].to_f32());
                    assert_eq!(kept.to_bits(), (b * x).to_bits(), "{context}");
                }
            }
        }
    }
}

#[test]
fn convolutions_agree_with_the_reference() {
    check_reference::<f32>("convolutions_agree_with_the_reference");
    check_reference::<bf16>("convolutions_agree_with_the_reference");
}

fn check_chunks<T: Element>(name: &str) {
    for variant in variants(name) {
        for conv in CONVOLUTIONS {
            let case = Case::<T>::new(conv, 11);
            let whole = case.run(&kernels(variant, 1), 0, &rows_of(11, 0, 0), &mut case.state(1));
            for cuts in [&[0, 1, 2, 3, 11][..], &[0, 5, 11], &[0, 2, 4, 5, 10, 11]] {
                let (mut state, kernels) = (case.state(3), sharing(variant, 2));
                // What an earlier sequence has left.
                state.fill(f32::NAN);
                for pair in cuts.windows(2) {
                    let rows = rows_of((pair[1] - pair[0]) as u32, 2, pair[0]);
                    let found = case.run(&kernels, pair[0], &rows, &mut state);
                    let expected = &whole[pair[0] * conv.channels..pair[1] * conv.channels];
                    assert_eq!(bits(&found), bits(expected), "{variant:?} {conv:?} {cuts:?}");
                }
                let others = &state[..2 * conv.inputs_len(0)];
                assert!(others.iter().all(|value| value.is_nan()), "other slots are unchanged");
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
fn sequences_do_not_depend_on_neighbours() {
    for variant in variants("sequences_do_not_depend_on_neighbours") {
        for conv in CONVOLUTIONS {
            let case = Case::<bf16>::new(conv, 12);
            let rows = [(0u32, 5u32, 3u32), (5, 1, 0), (6, 6, 2)];
            let all =
                rows.map(|(row0, rows, slot)| StateRows { row0, rows, slot, past: 0, drafts: 0 });
            let found = case.run(&sharing(variant, 3), 0, &all, &mut case.state(4));
            for (row0, rows, _) in rows {
                let alone = rows_of(rows, 0, 0);
                let alone =
                    case.run(&kernels(variant, 1), row0 as usize, &alone, &mut case.state(1));
                let together = &found[row0 as usize * conv.channels..][..alone.len()];
                assert_eq!(bits(&alone), bits(together), "{variant:?} {conv:?}");
            }
        }
    }
}
