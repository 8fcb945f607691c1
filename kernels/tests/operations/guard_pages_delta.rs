//! Tests that layers with a state access no byte outside their operands.

use crate::common::{bits, kernels, poison, variants};
use crate::guarded::{Guarded, SIDES, set_case};
use crate::mamba_case::{EPS, MAMBAS};
use crate::states::{Case, NETS};
use half::bf16;
use kernels::{DeltaInputs, Element, Kernels, StateRows, StateSlots};
use model::short_conv::ShortConv;

/// The last slot and the first, of sequences that continue and that begin.
const SEQUENCES: [StateRows; 2] = [
    StateRows { row0: 0, rows: 2, slot: 1, past: 9, drafts: 0 },
    StateRows { row0: 2, rows: 5, slot: 0, past: 0, drafts: 0 },
];

fn check<T: Element>(kernels: &Kernels) {
    for (seed, net) in NETS.into_iter().enumerate() {
        set_case(format!("{:?} {net:?}", kernels.variant()));
        let case = Case::<T>::new(net, 7, seed as u64);
        let mut states = case.states(2);
        let expected = case.run(kernels, &SEQUENCES, &mut states);
        for side in SIDES {
            let blank = case.states(2);
            let x = Guarded::new("x", side, &case.x);
            let weight = Guarded::new("weight", side, &case.weight);
            let mut inputs = Guarded::new("the convolution's inputs", side, &blank.inputs);
            let mut out = Guarded::new("out", side, &poison::<T>(case.x.len()));
            kernels.delta_convolution(
                &net,
                &SEQUENCES,
                x.slice(),
                weight.slice(),
                StateSlots::new(inputs.slice_mut(), 0),
                out.slice_mut(),
            );
            assert_eq!(bits(out.slice()), bits(&expected.convolved), "{side:?} {net:?}");
            assert_eq!(bits(inputs.slice()), bits(&states.inputs), "{side:?} {net:?}");
            let mixed = Guarded::new("mixed", side, &case.mixed);
            let ba = Guarded::new("ba", side, &case.ba);
            let decays = Guarded::new("decays", side, &case.decays);
            let rates = Guarded::new("rates", side, &case.rates);
            let mut kept = Guarded::new("states", side, &blank.states);
            let mut out = Guarded::new("out", side, &poison::<T>(expected.read.len()));
            kernels.delta_rule(
                &net,
                &SEQUENCES,
                DeltaInputs {
                    mixed: mixed.slice(),
                    ba: ba.slice(),
                    decays: decays.slice(),
                    rates: rates.slice(),
                },
                StateSlots::new(kept.slice_mut(), 0),
                out.slice_mut(),
            );
            assert_eq!(bits(out.slice()), bits(&expected.read), "{side:?} {net:?}");
            assert_eq!(bits(kept.slice()), bits(&states.states), "{side:?} {net:?}");
        }
    }
}

#[test]
fn states_stay_within_their_operands() {
    for variant in variants("states_stay_within_their_operands") {
        let kernels = kernels(variant, 1);
        check::<f32>(&kernels);
        check::<bf16>(&kernels);
    }
}

fn check_short_convolution<T: Element>(kernels: &Kernels) {
    for (channels, taps) in [(1, 2), (17, 3), (64, 4), (95, 1)] {
        set_case(format!("short convolution {:?} {channels} {taps}", kernels.variant()));
        let conv = ShortConv { channels, taps };
        let mut random = crate::common::Random::new(channels as u64);
        let input: Vec<T> = random.vector(7 * conv.input_size());
        let weight: Vec<f32> = random.vector(taps * channels);
        let (blank, out) = (vec![0.0; 2 * conv.inputs_len(0)], poison::<T>(7 * channels));
        let (mut kept, mut expected) = (blank.clone(), out.clone());
        let slots = StateSlots::new(&mut kept, 0);
        kernels.short_convolution(&conv, &SEQUENCES, &input, &weight, slots, &mut expected);
        for side in SIDES {
            let input = Guarded::new("input", side, &input);
            let weight = Guarded::new("weight", side, &weight);
            let mut state = Guarded::new("the convolution's inputs", side, &blank);
            let mut out = Guarded::new("out", side, &out);
            kernels.short_convolution(
                &conv,
                &SEQUENCES,
                input.slice(),
                weight.slice(),
                StateSlots::new(state.slice_mut(), 0),
                out.slice_mut(),
            );
            assert_eq!(bits(out.slice()), bits(&expected), "{side:?} {conv:?}");
            assert_eq!(bits(state.slice()), bits(&kept), "{side:?} {conv:?}");
        }
    }
}

#[test]
fn short_convolutions_stay_within_their_operands() {
    for variant in variants("short_convolutions_stay_within_their_operands") {
        let kernels = kernels(variant, 1);
        check_short_convolution::<f32>(&kernels);
        check_short_convolution::<bf16>(&kernels);
    }
}

fn check_shared_gate<T: Element>(kernels: &Kernels) {
    for (rows, hidden, width) in [(1, 1, 1), (3, 17, 33), (2, 64, 15)] {
        set_case(format!("shared gate {:?} {rows} {hidden} {width}", kernels.variant()));
        let mut random = crate::common::Random::new(hidden as u64);
        let (input, x): (Vec<T>, Vec<T>) =
            (random.vector(rows * hidden), random.vector(rows * width));
        let weight: Vec<f32> = random.vector(hidden);
        let mut expected = poison::<T>(rows * width);
        kernels.shared_gate(rows, &input, &weight, &x, &mut expected);
        for side in SIDES {
            let input = Guarded::new("input", side, &input);
            let weight = Guarded::new("weight", side, &weight);
            let x = Guarded::new("x", side, &x);
            let mut out = Guarded::new("out", side, &poison::<T>(rows * width));
            let operands = (input.slice(), weight.slice(), x.slice());
            kernels.shared_gate(rows, operands.0, operands.1, operands.2, out.slice_mut());
            assert_eq!(bits(out.slice()), bits(&expected), "{side:?}");
        }
    }
}

#[test]
fn shared_experts_stay_within_their_operands() {
    for variant in variants("shared_experts_stay_within_their_operands") {
        let kernels = kernels(variant, 1);
        check_shared_gate::<f32>(&kernels);
        check_shared_gate::<bf16>(&kernels);
    }
}

fn check_mamba<T: Element>(kernels: &Kernels) {
    for (seed, mamba) in MAMBAS.into_iter().enumerate() {
        set_case(format!("{:?} {mamba:?}", kernels.variant()));
        let case = crate::mamba_case::Case::<T>::new(mamba, 7, seed as u64);
        let mut states = case.states(2);
        let expected = case.run(kernels, &SEQUENCES, &mut states);
        for side in SIDES {
            let blank = case.states(2);
            let input = Guarded::new("input", side, &case.input);
            let weight = Guarded::new("weight", side, &case.weight);
            let bias = Guarded::new("bias", side, &case.bias);
            let bias = mamba.conv_bias.then(|| bias.slice());
            let mut inputs = Guarded::new("the convolution's inputs", side, &blank.inputs);
            let mut out = Guarded::new("out", side, &poison::<T>(case.mixed.len()));
            let (kept, to) = (StateSlots::new(inputs.slice_mut(), 0), out.slice_mut());
            let (x, weight) = (input.slice(), weight.slice());
            kernels.mamba_convolution(&mamba, &SEQUENCES, x, weight, bias, kept, to);
            assert_eq!(bits(out.slice()), bits(&expected.convolved), "{side:?} {mamba:?}");
            assert_eq!(bits(inputs.slice()), bits(&states.inputs), "{side:?} {mamba:?}");
            let mixed = Guarded::new("mixed", side, &case.mixed);
            let numbers = Guarded::new("numbers", side, &case.numbers);
            let gain = Guarded::new("gain", side, &case.gain);
            let mut kept = Guarded::new("states", side, &blank.states);
            let mut out = Guarded::new("out", side, &poison::<T>(expected.read.len()));
            kernels.mamba_scan(
                &mamba,
                &SEQUENCES,
                mixed.slice(),
                input.slice(),
                numbers.slice(),
                StateSlots::new(kept.slice_mut(), 0),
                out.slice_mut(),
            );
            assert_eq!(bits(out.slice()), bits(&expected.read), "{side:?} {mamba:?}");
            assert_eq!(bits(kept.slice()), bits(&states.states), "{side:?} {mamba:?}");
            kernels.group_norm(7, mamba.groups, gain.slice(), EPS, out.slice_mut());
            assert_eq!(bits(out.slice()), bits(&expected.normed), "{side:?} {mamba:?}");
        }
    }
}

#[test]
fn mamba_stays_within_its_operands() {
    for variant in variants("mamba_stays_within_its_operands") {
        let kernels = kernels(variant, 1);
        check_mamba::<f32>(&kernels);
        check_mamba::<bf16>(&kernels);
    }
}
