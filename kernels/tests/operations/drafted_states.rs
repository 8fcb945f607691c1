//! Tests that rows of drafts leave states as if they had never been computed, unless a later call
//! says that they were accepted.

use std::iter::repeat_n;

use crate::common::{Random, bits, kernels, poison, variants};
use crate::{mamba_case, states};
use half::bf16;
use kernels::{Element, Kernels, StateRows, StateSlots};
use model::short_conv::ShortConv;

/// Numbers of the rows that are no drafts, of drafts, and of accepted drafts, of calls in turn.
const CALLS: [[usize; 3]; 11] = [
    [3, 0, 0],
    [1, 4, 2],
    [1, 4, 0],
    [1, 4, 4],
    [1, 0, 0],
    [1, 2, 1],
    [2, 3, 3],
    [1, 1, 0],
    [1, 4, 3],
    [5, 0, 0],
    [1, 0, 0],
];
/// Number of rows that enter the states.
const ROWS: usize = 31;
const DRAFTS_MAX: usize = 4;
/// Slot of the sequence, of three.
const SLOT: u32 = 1;

/// A call over rows that are counted from the beginning of the sequence. Row `ROWS` and those after
/// it are those of refused drafts.
struct Call {
    sequence: StateRows,
    rows: Vec<usize>,
    /// Number of rows whose results count: all but those of refused drafts.
    valid: usize,
}

/// Returns the calls that compute a sequence.
fn calls() -> Vec<Call> {
    let mut past = 0;
    let mut refused = (ROWS..ROWS + DRAFTS_MAX).cycle();
    let calls = CALLS.map(|[certain, drafts, accepted]| {
        let rows = past..past + certain + accepted;
        let wrong = refused.by_ref().take(drafts - accepted);
        let rows: Vec<usize> = rows.chain(wrong).collect();
        let count = rows.len() as u32;
        let (slot, drafts) = (SLOT, drafts as u32);
        let sequence = StateRows { row0: 0, rows: count, slot, past: past as u32, drafts };
        past += certain + accepted;
        Call { sequence, rows, valid: certain + accepted }
    });
    assert_eq!(past, ROWS);
    calls.into()
}

/// Returns a call over all rows at once.
fn whole() -> StateRows {
    StateRows { row0: 0, rows: ROWS as u32, slot: SLOT, past: 0, drafts: 0 }
}

/// Asserts that the results of a call are those of the same rows of the sequence; `width` is the
/// number of elements of a row.
fn assert_rows<T: Element>(call: &Call, found: &[T], whole: &[T], width: usize, context: &str) {
    let first = call.sequence.past as usize;
    let expected = &whole[first * width..][..call.valid * width];
    assert_eq!(bits(&found[..call.valid * width]), bits(expected), "{context}, row {first}");
}

fn check_delta<T: Element>(kernels: &Kernels) {
    for (seed, net) in states::NETS.into_iter().enumerate() {
        let all = states::Case::<T>::new(net, ROWS + DRAFTS_MAX, seed as u64);
        let case = all.part(0..ROWS);
        let expected = case.run(kernels, &[whole()], &mut case.states(3));
        let case = states::Case { draft_positions: DRAFTS_MAX, ..case };
        let mut states = case.states(3);
        // What an earlier sequence has left.
        states.inputs.fill(f32::NAN);
        states.states.fill(f32::NAN);
        for call in calls() {
            let part = all.part(call.rows.iter().copied());
            let part = states::Case { draft_positions: DRAFTS_MAX, ..part };
            let found = part.run(kernels, &[call.sequence], &mut states);
            let context = format!("{:?} {net:?}", kernels.variant());
            let (channels, values) = (net.channels(), net.value_size());
            assert_rows(&call, &found.convolved, &expected.convolved, channels, &context);
            assert_rows(&call, &found.read, &expected.read, values, &context);
        }
    }
}

fn check_mamba<T: Element>(kernels: &Kernels) {
    for (seed, mamba) in mamba_case::MAMBAS.into_iter().enumerate() {
        let all = mamba_case::Case::<T>::new(mamba, ROWS + DRAFTS_MAX, seed as u64);
        let case = all.part(0..ROWS);
        let expected = case.run(kernels, &[whole()], &mut case.states(3));
        let case = mamba_case::Case { draft_positions: DRAFTS_MAX, ..case };
        let mut states = case.states(3);
        states.inputs.fill(f32::NAN);
        states.states.fill(f32::NAN);
        for call in calls() {
            let part = all.part(call.rows.iter().copied());
            let part = mamba_case::Case { draft_positions: DRAFTS_MAX, ..part };
            let found = part.run(kernels, &[call.sequence], &mut states);
            let context = format!("{:?} {mamba:?}", kernels.variant());
            let (channels, inner) = (mamba.channels(), mamba.inner_size());
            assert_rows(&call, &found.convolved, &expected.convolved, channels, &context);
            assert_rows(&call, &found.read, &expected.read, inner, &context);
            assert_rows(&call, &found.normed, &expected.normed, inner, &context);
        }
    }
}

fn check_short_convolution<T: Element>(kernels: &Kernels) {
    for (channels, taps) in [(1, 2), (33, 1), (95, 4), (1100, 3)] {
        let conv = ShortConv { channels, taps };
        let mut random = Random::new(channels as u64);
        let input: Vec<T> = random.vector((ROWS + DRAFTS_MAX) * conv.input_size());
        let weight: Vec<f32> = random.vector(taps * channels);
        let mut expected = poison::<T>(ROWS * channels);
        let mut values = vec![0.0; 3 * conv.inputs_len(0)];
        let slots = StateSlots::new(&mut values, 0);
        let rows = &input[..ROWS * conv.input_size()];
        kernels.short_convolution(&conv, &[whole()], rows, &weight, slots, &mut expected);
        let mut values: Vec<f32> = repeat_n(f32::NAN, 3 * conv.inputs_len(DRAFTS_MAX)).collect();
        for call in calls() {
            let rows = call
                .rows
                .iter()
                .flat_map(|row| &input[row * conv.input_size()..][..conv.input_size()]);
            let rows: Vec<T> = rows.copied().collect();
            let mut found = poison::<T>(call.rows.len() * channels);
            let slots = StateSlots::new(&mut values, DRAFTS_MAX);
            kernels.short_convolution(&conv, &[call.sequence], &rows, &weight, slots, &mut found);
            let context = format!("{:?} {conv:?}", kernels.variant());
            assert_rows(&call, &found, &expected, channels, &context);
        }
    }
}

#[test]
fn refused_drafts_leave_states_as_they_were() {
    for variant in variants("refused_drafts_leave_states_as_they_were") {
        for threads in [1, 3] {
            let kernels = kernels(variant, threads);
            check_delta::<f32>(&kernels);
            check_delta::<bf16>(&kernels);
            check_mamba::<f32>(&kernels);
            check_mamba::<bf16>(&kernels);
            check_short_convolution::<f32>(&kernels);
            check_short_convolution::<bf16>(&kernels);
        }
    }
}

/// Sequences of a call have drafts of their own.
#[test]
fn sequences_accept_their_own_drafts() {
    for variant in variants("sequences_accept_their_own_drafts") {
        let (kernels, net) = (kernels(variant, 3), states::NETS[1]);
        let case = states::Case::<bf16>::new(net, 8, 5);
        let case = states::Case { draft_positions: 2, ..case };
        let rows_of = |row0, rows, slot, past, drafts| StateRows { row0, rows, slot, past, drafts };
        let alone = |rows: [StateRows; 2]| {
            let mut states = case.states(2);
            let [first, second] = rows.map(|rows| {
                let part = case.part(rows.row0 as usize..(rows.row0 + rows.rows) as usize);
                part.run(&kernels, &[StateRows { row0: 0, ..rows }], &mut states)
            });
            [first.read, second.read].concat()
        };
        let firsts = [rows_of(0, 3, 1, 0, 2), rows_of(3, 2, 0, 0, 1)];
        let seconds = [rows_of(5, 1, 1, 2, 0), rows_of(6, 2, 0, 1, 1)];
        let mut states = case.states(2);
        let first = case.part(0..5).run(&kernels, &firsts, &mut states);
        let moved = seconds.map(|rows| StateRows { row0: rows.row0 - 5, ..rows });
        let second = case.part(5..8).run(&kernels, &moved, &mut states);
        let width = net.value_size();
        for (sequence, pair) in firsts.into_iter().zip(seconds).enumerate() {
            let expected = alone([pair.0, pair.1]);
            let of = |all: &[bf16], rows: StateRows, from: u32| -> Vec<bf16> {
                let first = (rows.row0 - from) as usize * width;
                all[first..first + rows.rows as usize * width].to_vec()
            };
            let found = [of(&first.read, pair.0, 0), of(&second.read, pair.1, 5)].concat();
            assert_eq!(bits(&found), bits(&expected), "{variant:?}, sequence {sequence}");
        }
    }
}

/// A state that contains refused rows, or lacks rows, cannot be continued.
#[test]
fn states_are_continued_at_their_rows_or_drafts() {
    let kernels = kernels(kernels::Variant::Scalar, 1);
    let case = states::Case::<f32>::new(states::NETS[0], 5, 0);
    let case = states::Case { draft_positions: DRAFTS_MAX, ..case };
    for (past, is_valid) in [(3, false), (4, true), (5, true), (6, false), (9, false)] {
        let mut states = case.states(1);
        let first = StateRows { row0: 0, rows: 5, slot: 0, past: 0, drafts: 1 };
        case.run(&kernels, &[first], &mut states);
        let part = case.part(0..1);
        let part = states::Case { draft_positions: DRAFTS_MAX, ..part };
        let next = StateRows { row0: 0, rows: 1, slot: 0, past, drafts: 0 };
        let run = std::panic::AssertUnwindSafe(|| part.run(&kernels, &[next], &mut states));
        assert_eq!(std::panic::catch_unwind(run).is_ok(), is_valid, "at row {past}");
    }
}

#[test]
#[should_panic(expected = "2 drafts, and slots for 1")]
fn more_drafts_than_slots_have_space_for_are_refused() {
    let case = states::Case::<f32>::new(states::NETS[0], 3, 0);
    let case = states::Case { draft_positions: 1, ..case };
    let rows = StateRows { row0: 0, rows: 3, slot: 0, past: 0, drafts: 2 };
    case.run(&kernels(kernels::Variant::Scalar, 1), &[rows], &mut case.states(1));
}
