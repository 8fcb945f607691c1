//! Plans that lack any one of their copies, signals or waits. The validator refuses such a plan
//! (`program/tests/plans/dropped.rs`). If it runs nevertheless, it must fail visibly: with wrong
//! logits or tokens, or with lanes that stop and report it. All memory begins as NaN, so premature
//! reads show.

mod case;
#[path = "../common/mod.rs"]
mod common;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use case::{Case, NEW, Site, is_copy, is_signal, is_wait};
use kernels::{PoolOptions, Variant};
use program::ir::ProgramId;
use program::plan::Plan;
use program::topology::LaneId;
use workers::error::LaneError;
use workers::setup::LaneOptions;
use workers::testing::{InProcess, Interleaved, Outcome, SampledLogits};

fn options(wait_timeout: Duration) -> LaneOptions {
    LaneOptions {
        variant: Variant::best(),
        pool: PoolOptions::unpinned(1),
        link_bytes_per_s: None,
        wait_timeout,
        grammars: None,
        routes_randomly: false,
        select_text: Vec::new(),
        drafter: None,
    }
}

/// Tokens, and the bits of all logits that they were drawn from, by place and step.
type Seen = (Vec<Outcome>, Vec<(u32, usize, usize, Vec<u32>)>);

fn seen((outcomes, sampled): (Vec<Outcome>, Vec<SampledLogits>)) -> Seen {
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect();
    let mut all: Vec<_> =
        sampled.iter().map(|one| (one.step, one.batch, one.slot, bits(&one.logits))).collect();
    // The schedule determines the order of batches.
    all.sort();
    (outcomes, all)
}

/// Choice of the lane that proceeds if several can.
#[derive(Debug, Clone, Copy)]
enum Schedule {
    /// Prefers one lane whenever it can proceed, and another only if no other can.
    Favour { first: LaneId, last: LaneId },
    /// Chooses pseudorandomly, given a seed.
    Random(u64),
}

impl Schedule {
    fn choose(&mut self, ready: &[LaneId]) -> usize {
        match self {
            Schedule::Favour { first, last } => {
                let rank = |lane: &LaneId| {
                    if lane == first {
                        0
                    } else if lane == last {
                        2
                    } else {
                        1
                    }
                };
                (0..ready.len()).min_by_key(|i| rank(&ready[*i])).expect("one is ready")
            }
            Schedule::Random(state) => {
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (*state >> 33) as usize % ready.len()
            }
        }
    }
}

/// Runs a plan on one thread in one order. Returns `None` if no lane can proceed.
fn interleaved(case: &Case, plan: Plan, mut schedule: Schedule) -> Option<Seen> {
    let limit = Duration::from_secs(60);
    let mut lanes = Interleaved::start(plan, &case.source(), options(limit)).expect("starts");
    lanes.run_group(&case.group(), &mut |ready| schedule.choose(ready)).ok().map(seen)
}

/// Runs the undisturbed plan.
fn whole(case: &Case) -> Seen {
    let seen = interleaved(case, case.plan.clone(), Schedule::Random(1)).expect("it drains");
    assert_eq!(seen.1.len(), 4 * NEW as usize);
    let finite = |(_, _, _, bits): &(u32, usize, usize, Vec<u32>)| {
        bits.iter().all(|bits| f32::from_bits(*bits).is_finite())
    };
    assert!(seen.1.iter().all(finite));
    seen
}

/// Fails the test if it takes far longer than it could on any machine.
fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, finished) = channel();
    let thread = std::thread::spawn(move || {
        test();
        // The send fails if the time was up.
        let _ = done.send(());
    });
    match finished.recv_timeout(Duration::from_secs(300)) {
        Err(RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn every_order_of_the_lanes_gives_the_same_bits() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            let lanes: Vec<LaneId> = case.plan.topology.lane_ids().collect();
            let pairs = lanes.iter().flat_map(|first| lanes.iter().map(|last| (*first, *last)));
            let favours = pairs.map(|(first, last)| Schedule::Favour { first, last });
            for schedule in favours.chain((0..30).map(Schedule::Random)) {
                let found = interleaved(&case, case.plan.clone(), schedule);
                assert!(found.as_ref() == Some(&expected), "{} {schedule:?}", case.config.name);
            }
        }
    });
}

/// The lane that lost its wait runs ahead, and the one that it would have waited for comes last, as
/// if it were delayed at every instruction.
#[test]
fn a_missing_wait_shows() {
    watched(|| {
        for case in Case::all() {
            let expected = whole(&case);
            let (mut shown, mut hidden) = (0, 0);
            for site in case.sites(is_wait) {
                let (first, last) = (case.list(site).lane, case.wait(site).lane);
                let found =
                    interleaved(&case, case.without(site), Schedule::Favour { first, last });
                if found.as_ref() != Some(&expected) {
                    shown += 1;
                } else if let Some(_reason) = case.cannot_show(site) {
                    hidden += 1;
                } else {
                    panic!("{} does not show: {}", case.config.name, case.describe(site));
                }
            }
            println!("{}: {shown} missing waits show, {hidden} cannot", case.config.name);
            assert!(shown > 200 && hidden < shown / 5, "{shown} {hidden}");
        }
    });
}

/// Tokens, and the bits of the logits of the last step of both batches.
type Ended = (Vec<Outcome>, Vec<u32>);

/// Returns the state that remains of a run after its end.
fn ended((outcomes, logits): Seen) -> Ended {
    let last = logits.into_iter().filter(|(step, ..)| *step == NEW - 1);
    (outcomes, last.flat_map(|(_, _, _, bits)| bits).collect())
}

/// Runs the workers' own lanes in threads. Returns their ends if one failed.
fn threads(
    case: &Case,
    plan: Plan,
    wait_timeout: Duration,
) -> Result<Ended, Vec<Result<(), LaneError>>> {
    let mut lanes = InProcess::start(plan, &case.source(), options(wait_timeout)).expect("starts");
    match lanes.try_group(&case.group()) {
        Err(_) => Err(lanes.finish()),
        Ok(outcomes) => {
            let logits = [0, 1].map(|batch| lanes.logits(ProgramId::DECODE, batch, 0, 2)).concat();
            assert!(lanes.finish().iter().all(Result::is_ok));
            Ok((outcomes, logits.into_iter().map(f32::to_bits).collect()))
        }
    }
}

/// Without a copy the lanes still wait for each other as before: any order of them is as good as
/// any other, and threads reach the same end.
#[test]
fn a_missing_copy_shows() {
    watched(|| {
        let limit = Duration::from_secs(60);
        for case in Case::all() {
            let expected = whole(&case);
            assert_eq!(threads(&case, case.plan.clone(), limit), Ok(ended(expected.clone())));
            let (sites, mut to_the_end) = (case.sites(is_copy), 0);
            for site in &sites {
                let plan = case.without(*site);
                let found = interleaved(&case, plan.clone(), Schedule::Random(2));
                let found = found.expect("no lane waits for a copy itself");
                assert!(found != expected, "{}: {}", case.config.name, case.describe(*site));
                let found = ended(found);
                to_the_end += usize::from(found != ended(expected.clone()));
                assert!(
                    threads(&case, plan, limit) == Ok(found),
                    "threads end otherwise: {}: {}",
                    case.config.name,
                    case.describe(*site)
                );
            }
            let count = sites.len();
            println!("{}: {count} missing copies show, {to_the_end} to the end", case.config.name);
            // Some show only in the logits of prefill, from which the right token is drawn by
            // chance.
            assert!(count > 90 && to_the_end > count * 9 / 10, "{to_the_end} of {count}");
        }
    });
}

#[test]
fn a_lost_signal_stops_the_lanes() {
    watched(|| {
        for case in Case::all() {
            let sites = case.sites(is_signal);
            for site in &sites {
                let found = interleaved(&case, case.without(*site), Schedule::Random(3));
                assert!(found.is_none(), "{}: {}", case.config.name, case.describe(*site));
            }
            println!("{}: {} lost signals show", case.config.name, sites.len());
            assert!(sites.len() > 150, "{}", sites.len());
            // The lanes sleep until their time is up, so many concurrent runs take no longer than
            // one.
            std::thread::scope(|scope| {
                for share in sites.chunks(sites.len().div_ceil(8)) {
                    let case = &case;
                    scope.spawn(move || {
                        share.iter().for_each(|site| assert_reported_by_lane(case, *site))
                    });
                }
            });
        }
    });
}

/// Checks that one of the workers' own lanes reports a wait in vain.
fn assert_reported_by_lane(case: &Case, site: Site) {
    match threads(case, case.without(site), Duration::from_millis(20)) {
        Ok(_) => panic!("{}: {} was not missed", case.config.name, case.describe(site)),
        Err(ended) => assert!(
            ended.iter().any(|ended| matches!(ended, Err(LaneError::TimedOut { .. }))),
            "{ended:?}"
        ),
    }
}
