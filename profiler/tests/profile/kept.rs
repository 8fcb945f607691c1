//! What is kept beside a profile: rehearsals, and runs that have ended.

use std::time::Duration;

use planner::policy::Formats;
use profiler::{
    CompletedRun, ComputeThreads, Correction, ProfileCache, ProfilingRequest, RehearsalTimes,
    RunTimes, load_or_measure, plan_key, rehearse,
};
use program::plan::Plan;

use crate::common::opt;
use crate::fake::{Call, FakeRunner};
use crate::sure::steady;
use crate::{SHAPE, THREADS, machine, plans, request};

/// A rehearsal whose sessions take so many times a steady time, the groups of each in turn; its
/// groups in percent of that time.
fn rehearsal(sessions: &'static [&'static [f64]], is_expected: bool) -> RehearsalTimes {
    let config = opt();
    let plan: Plan = plans(&config, &SHAPE, &Formats::plain(&config), 2).swap_remove(0);
    let mut steady = FakeRunner::new(|_: Call| 1e6);
    let steady = rehearse(&plan, 5, THREADS, None, &mut steady).expect("it runs");
    let mut runner = FakeRunner::new(move |call: Call| {
        let groups = sessions[call.session - 1];
        // The first group warms up.
        1e6 * groups[call.group.saturating_sub(1) % groups.len()]
    });
    let expected_ns = is_expected.then(|| steady.decode_ns());
    let mut rehearsal = rehearse(&plan, 5, THREADS, expected_ns, &mut runner).expect("it runs");
    assert_eq!(rehearsal.sessions as usize, runner.started);
    for ns in &mut rehearsal.groups_ns {
        *ns = (100.0 * *ns as f64 / steady.decode_ns()).round() as u64;
    }
    rehearsal
}

#[test]
fn a_rehearsal_that_agrees_with_itself_and_the_simulation_is_kept() {
    let kept = rehearsal(&[&[1.0, 1.02, 1.01]], true);
    assert_eq!((kept.sessions, kept.decode_ns()), (1, 101.0), "{kept:?}");
}

#[test]
fn one_disturbed_session_does_not_overrule() {
    let kept = rehearsal(&[&[2.75], &[1.0], &[1.0]], true);
    assert_eq!((kept.sessions, kept.decode_ns()), (3, 100.0), "{kept:?}");
}

#[test]
fn a_surprise_that_repeats_is_kept() {
    let kept = rehearsal(&[&[2.75], &[2.7]], true);
    assert_eq!(kept.sessions, 2, "{kept:?}");
    assert!((270.0..=275.0).contains(&kept.decode_ns()), "{kept:?}");
}

#[test]
fn groups_that_disagree_are_repeated_by_fresh_workers() {
    let kept = rehearsal(&[&[1.0, 1.5, 1.0], &[1.0, 1.01, 1.0]], false);
    assert_eq!((kept.sessions, kept.decode_ns()), (2, 100.0), "{kept:?}");
    assert!(kept.spread() > 0.4, "the disturbed groups are kept: {kept:?}");
}

#[test]
fn force_drops_the_rehearsals_of_both_siblings() {
    let config = opt();
    let folder = tempfile::tempdir().expect("a folder");
    let cache = ProfileCache::new(folder.path());
    let with_device = ProfilingRequest { budget: Duration::ZERO, ..request(&config) };
    let alone = ProfilingRequest {
        device: None,
        threads: ComputeThreads { cpu: 2, gpu: 0 },
        chunks: Vec::new(),
        ..with_device.clone()
    };
    let other = ProfilingRequest { batch_size: 2, ..alone.clone() };
    let profile = |request: &ProfilingRequest, force: bool| {
        let mut runner = FakeRunner::new(steady);
        let quiet = &mut |_: u64, _: u64, _: &str| {};
        let cached = load_or_measure(Some(&cache), request, &machine(), force, &mut runner, quiet);
        let cached = cached.expect("a profile");
        assert!(cached.not_stored.is_none());
        cached.profile
    };
    for request in [&with_device, &alone, &other] {
        let mut profile = profile(request, false);
        let (plan, groups_ns) = ("a plan".to_owned(), vec![1, 2, 3]);
        profile.measurements.rehearsals =
            vec![RehearsalTimes { plan, steps: 1, groups_ns, sessions: 1 }];
        cache.store(&profile).expect("it is kept");
    }
    profile(&alone, true);
    let kept = |request: &ProfilingRequest| profile(request, false).measurements.rehearsals.len();
    assert_eq!([kept(&with_device), kept(&alone), kept(&other)], [0, 0, 1]);
}

#[test]
fn finished_runs_are_kept_and_bounded() {
    let config = opt();
    let folder = tempfile::tempdir().expect("a folder");
    let cache = ProfileCache::new(folder.path());
    let request = ProfilingRequest { budget: Duration::ZERO, ..request(&config) };
    let mut runner = FakeRunner::new(steady);
    let quiet = &mut |_: u64, _: u64, _: &str| {};
    let cached = load_or_measure(Some(&cache), &request, &machine(), false, &mut runner, quiet);
    let fingerprint = cached.expect("a profile").profile.fingerprint;
    let plans = plans(&config, &SHAPE, &Formats::plain(&config), 2);
    let (plan, other) = (plan_key(&plans[0]), plan_key(&plans[1]));
    let finish = |plan: &str, ratio: f64| {
        let simulated = RunTimes { prefill_ns: 1e9, decode_ns: 3e9 };
        let measured = RunTimes { prefill_ns: 0.9e9, decode_ns: 3e9 * ratio };
        let run = CompletedRun { plan: plan.to_owned(), simulated, measured };
        cache.record_finished(&fingerprint, run).expect("it is kept")
    };
    let correction = |plan: &str| cache.load(&fingerprint).expect("kept").correction(plan);
    assert_eq!(correction(&plan), None);
    assert!(finish(&other, 7.0));
    // One slow run among others is none of the plan's.
    for ratio in [1.2, 4.0, 1.3] {
        assert!(finish(&plan, ratio));
    }
    let bounded = |decode, runs| Some(Correction { prefill: 0.9, decode, runs });
    assert_eq!((correction(&plan), correction(&other)), (bounded(1.3, 3), bounded(2.0, 1)));
    // The machine has become steady: the first runs are forgotten, those of others are not.
    for _ in 0..8 {
        finish(&plan, 1.5);
    }
    let kept = cache.load(&fingerprint).expect("kept").measurements.finished;
    assert_eq!(kept.len(), 9);
    assert!(kept.iter().all(|run| run.plan == other || run.measured.decode_ns == 4.5e9));
    let mut absent = fingerprint.clone();
    absent.profiled.insert("batch".to_owned(), "5".to_owned());
    let run = kept[0].clone();
    assert!(!cache.record_finished(&absent, run).expect("nothing to write"), "no such profile");
}
