//! Tests of layers with a state against the reference, and of the independence of their rows of
//! chunks, neighbours and threads.

use std::time::Duration;

use crate::common::{Random, assert_close, bits, kernels, poison, tolerance, variants};
use crate::states::{Case, NETS};
use half::bf16;
use kernels::{Element, Kernels, StateRows, Variant, reference};

/// Errors of sums over rows accumulate for as long as the state remembers them.
const RULE_TOLERANCE: f64 = 10.0;

fn sharing(variant: Variant, threads: usize) -> Kernels {
    let kernels = kernels(variant, threads);
    kernels.set_spin(Duration::from_micros(20));
    kernels
}

/// Returns the rows of a sequence in the slot, split at `cuts`.
fn cut(cuts: &[usize], slot: u32) -> Vec<StateRows> {
    let pieces = cuts.windows(2).map(|pair| StateRows {
        row0: 0,
        rows: (pair[1] - pair[0]) as u32,
        slot,
        past: pair[0] as u32,
        drafts: 0,
    });
    pieces.collect()
}

fn check_reference<T: Element>(name: &str) {
    for variant in variants(name) {
        for (seed, net) in NETS.into_iter().enumerate() {
            let context = format!("{variant:?} {net:?}");
            let case = Case::<T>::new(net, 9, seed as u64);
            let whole = cut(&[0, 9], 1);
            let found = case.run(&sharing(variant, 3), &whole, &mut case.states(2));
            let expected = reference::delta_convolution(&net, &case.x, &case.weight);
            let row = (net.channels(), 0.5);
            assert_close(&found.convolved, &expected, row, tolerance(), &context);
            let expected = reference::delta_rule(&net, case.inputs());
            let row = (net.value_size(), 0.5);
            assert_close(&found.read, &expected, row, RULE_TOLERANCE * tolerance(), &context);
        }
    }
}

#[test]
fn states_agree_with_the_reference() {
    check_reference::<f32>("states_agree_with_the_reference");
    check_reference::<bf16>("states_agree_with_the_reference");
}

fn check_chunks<T: Element>(name: &str) {
    for variant in variants(name) {
        for (seed, net) in NETS.into_iter().enumerate() {
            let case = Case::<T>::new(net, 11, seed as u64);
            let whole = case.run(&kernels(variant, 1), &cut(&[0, 11], 0), &mut case.states(1));
            for cuts in [&[0, 1, 2, 3, 11][..], &[0, 5, 11], &[0, 2, 4, 5, 10, 11]] {
                let mut states = case.states(3);
                let sharing = sharing(variant, 2);
                for (piece, pair) in cut(cuts, 2).into_iter().zip(cuts.windows(2)) {
                    let part = case.part(pair[0]..pair[1]);
                    let found = part.run(&sharing, &[piece], &mut states);
                    let context = format!("{variant:?} {net:?} {cuts:?} from {}", pair[0]);
                    let of = |all: &[T], width: usize| bits(&all[pair[0] * width..pair[1] * width]);
                    let (channels, values) = (net.channels(), net.value_size());
                    assert_eq!(bits(&found.convolved), of(&whole.convolved, channels), "{context}");
                    assert_eq!(bits(&found.read), of(&whole.read, values), "{context}");
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
        for (seed, net) in NETS.into_iter().enumerate() {
            let case = Case::<bf16>::new(net, 12, seed as u64);
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
                let one = [StateRows { row0: 0, rows, slot: 0, past: 0, drafts: 0 }];
                let alone = part.run(&kernels(variant, 1), &one, &mut case.states(1));
                let (channels, values) = (net.channels(), net.value_size());
                let convolved = &found.convolved[range.start * channels..range.end * channels];
                let read = &found.read[range.start * values..range.end * values];
                assert_eq!(bits(&alone.convolved), bits(convolved), "{variant:?} {net:?}");
                assert_eq!(bits(&alone.read), bits(read), "{variant:?} {net:?}");
            }
            let untouched = &states.states[net.state_len()..2 * net.state_len()];
            assert!(untouched.iter().all(|value| value.is_nan()), "slot 1 is nobody's");
        }
    }
}

#[test]
#[should_panic(expected = "a slot of its own")]
fn sequences_that_share_a_slot_are_refused() {
    let net = NETS[0];
    let case = Case::<f32>::new(net, 2, 0);
    let one = |row0| StateRows { row0, rows: 1, slot: 0, past: 0, drafts: 0 };
    case.run(&kernels(Variant::Scalar, 1), &[one(0), one(1)], &mut case.states(1));
}

fn check_shared_gate<T: Element>(variant: Variant, (rows, hidden, width): (usize, usize, usize)) {
    let mut random = Random::new(hidden as u64);
    let (input, x): (Vec<T>, Vec<T>) = (random.vector(rows * hidden), random.vector(rows * width));
    let weight: Vec<f32> = random.vector(hidden);
    let mut out = poison::<T>(rows * width);
    sharing(variant, 3).shared_gate(rows, &input, &weight, &x, &mut out);
    let wide = |values: &[T]| -> Vec<f64> {
        values.iter().map(|value| f64::from(value.to_f32())).collect()
    };
    let expected: Vec<f64> = (0..rows)
        .flat_map(|row| {
            let input = wide(&input[row * hidden..][..hidden]);
            let sum: f64 = input.iter().zip(&weight).map(|(x, w)| x * f64::from(*w)).sum();
            let factor = 1.0 / (1.0 + (-sum).exp());
            wide(&x[row * width..][..width]).into_iter().map(move |x| factor * x)
        })
        .collect();
    let context = format!("{variant:?} {rows} {hidden} {width}");
    assert_close(&out, &expected, (width, 0.5), 2.0 * tolerance(), &context);
    for row in 0..rows {
        let mut alone = poison::<T>(width);
        let (input, x) = (&input[row * hidden..][..hidden], &x[row * width..][..width]);
        kernels(variant, 1).shared_gate(1, input, &weight, x, &mut alone);
        assert_eq!(bits(&alone), bits(&out[row * width..][..width]), "{context}");
    }
}

#[test]
fn shared_experts_are_weighed() {
    for variant in variants("shared_experts_are_weighed") {
        for shape in [(1, 1, 1), (3, 17, 33), (5, 576, 24)] {
            check_shared_gate::<f32>(variant, shape);
            check_shared_gate::<bf16>(variant, shape);
        }
    }
}

/// States that keep nothing or everything, and rates beyond the range of an exponential.
#[test]
fn extreme_rates_keep_states_finite() {
    for variant in variants("extreme_rates_keep_states_finite") {
        let rates = [(-100.0, 0.0), (100.0, 0.0), (0.0, 200.0), (0.0, -200.0)];
        let nets = rates.map(|rates| (NETS[1], rates)).into_iter();
        let by_channel = NETS[8];
        let nets = nets.chain(rates.map(|rates| (by_channel, rates)));
        for (net, (rate, bias)) in nets.chain([(by_channel, (100.0, -200.0))]) {
            let mut case = Case::<f32>::new(net, 40, 3);
            case.rates[..net.value_heads].fill(rate);
            case.rates[net.value_heads..].fill(bias);
            let found = case.run(&kernels(variant, 1), &cut(&[0, 40], 0), &mut case.states(1));
            let is_finite = found.read.iter().all(|value| value.is_finite());
            assert!(is_finite, "{variant:?} {net:?} {rate} {bias}");
        }
    }
}
