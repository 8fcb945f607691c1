//! Traces of compiled programs, simulated under several timings, pass the replay check; a disturbed
//! trace does not.

use crate::common::{Choices, PLAIN, llama, opt, shape, split};
use program::compile::compile;
use program::ir::Instruction;
use program::map::{ChunkOrder, ComputeDevice};
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts, Span, simulate};
use program::topology::{LaneId, LaneSet};
use program::validate::{ReplayError, replay, validate};

/// Costs that differ between instructions and between steps.
struct Uneven(u64);

impl SimulationCosts for Uneven {
    fn work_ns(&self, place: Place, _: &Instruction, step: u32) -> f64 {
        let key = self.0 + u64::from(place.instruction) * 31 + u64::from(step) * 7;
        (1 + (key + place.lane.index() as u64 * 13) * 2_654_435_761 % 97) as f64
    }

    fn rate(&self, Place { lane, .. }: Place, busy: LaneSet) -> f64 {
        let cpu = lane == LaneId::CPU_COMPUTE;
        if cpu && busy.contains(LaneId::H2D_WEIGHTS) { 0.6 } else { 1.0 }
    }

    fn wake_ns(&self) -> f64 {
        5.0
    }
}

fn plan() -> Plan {
    let choices = Choices { chunking: Some((ChunkOrder::Attention, 4)), ..PLAIN };
    let plan = compile(&llama(), &shape(2, 2), &split(&llama(), 7, 13, choices)).unwrap();
    validate(&plan).unwrap();
    plan
}

/// Returns the trace of prefill followed by five steps of decode.
fn trace(plan: &Plan, seed: u64) -> Vec<Span> {
    let prefill = simulate(plan.prefill(), &Uneven(seed), 1).unwrap();
    let decode = simulate(plan.decode(), &Uneven(seed), 5).unwrap();
    let barrier_ns = prefill.total_ns.round() as u64;
    let later = decode.spans.into_iter().map(|span| Span {
        start_ns: span.start_ns + barrier_ns,
        end_ns: span.end_ns + barrier_ns,
        ..span
    });
    prefill.spans.into_iter().chain(later).collect()
}

#[test]
fn simulated_runs_replay() {
    let gpu = Choices { outer: ComputeDevice::Gpu, slots: 1, ..PLAIN };
    let plans = [plan(), compile(&opt(), &shape(3, 1), &split(&opt(), 0, 11, gpu)).unwrap()];
    for plan in &plans {
        for seed in 0..20 {
            let trace = trace(plan, seed);
            let replayed = replay(plan, &trace).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(replayed.spans, trace.len());
            assert!(replayed.waits > 100 && replayed.separated > 1000, "{replayed:?}");
        }
    }
}

/// Every span that is moved before the work it waits for is detected.
#[test]
fn disturbed_runs_do_not() {
    let plan = plan();
    let good = trace(&plan, 3);
    let mut noticed = 0;
    for index in 0..good.len() {
        let mut trace = good.clone();
        // All at once: only spans with nothing to wait for may start at the beginning.
        trace[index].start_ns = 0;
        trace[index].end_ns = good.iter().map(|span| span.end_ns).max().unwrap();
        noticed += usize::from(replay(&plan, &trace).is_err());
    }
    assert_eq!(noticed, good.len());
}

#[test]
fn each_kind_of_departure_is_named() {
    let plan = plan();
    let good = trace(&plan, 0);
    let of = |lane: LaneId| {
        let place = good.iter().position(|span| span.lane == lane && span.start_ns > 0);
        place.unwrap()
    };
    let changed = |index: usize, edit: &dyn Fn(&mut Span)| {
        let mut trace = good.clone();
        edit(&mut trace[index]);
        replay(&plan, &trace).unwrap_err()
    };
    let unknown = changed(0, &|span| span.instruction = 100_000);
    assert!(matches!(unknown, ReplayError::Unknown(_)), "{unknown}");
    let backwards = changed(of(LaneId::CPU_COMPUTE), &|span| span.end_ns = span.start_ns - 1);
    assert!(matches!(backwards, ReplayError::Backwards(_)), "{backwards}");
    let twice = {
        let mut trace = good.clone();
        trace.push(good[0]);
        replay(&plan, &trace).unwrap_err()
    };
    assert!(matches!(twice, ReplayError::LaneOrder { .. }), "{twice}");
    let mut early: Vec<Span> = good.clone();
    early.iter_mut().filter(|span| span.lane == LaneId::D2H).for_each(|span| {
        span.start_ns = 0;
        span.end_ns = 0;
    });
    let wait = replay(&plan, &early).unwrap_err();
    assert!(matches!(wait, ReplayError::Wait { .. }), "{wait}");
    let mut together = good.clone();
    let first =
        together.iter().map(|span| span.program).position(|program| program != good[0].program);
    let decode = &mut together[first.unwrap()..];
    decode.iter_mut().for_each(|span| {
        span.start_ns = 0;
        span.end_ns = 0;
    });
    let barrier = replay(&plan, &together).unwrap_err();
    assert!(matches!(barrier, ReplayError::Barrier { .. }), "{barrier}");
}
