//! How sure a profile is: what it lacks, and what contradicts itself.

use std::time::Duration;

use model::ops::{Kv, Op};
use planner::policy::Formats;
use profiler::key::ProfiledWork;
use profiler::profile::WorkMeasurement;
use profiler::{
    ComputeThreads, Profile, ProfileCostError, ProfileCosts, ProfilingRequest, REPETITIONS_MIN,
    RunLength, run,
};
use program::ir::{Instruction, ProgramId};
use program::map::Phase;
use program::plan::RunShape;
use program::simulate::{Place, SimulationCosts};
use program::topology::LaneId;

use crate::common::{llama, opt};
use crate::fake::{Call, FakeRunner};
use crate::{SHAPE, THREADS, WORKLOAD, machine, plans, request, simulate_all};

/// Nanoseconds of work that grows with its extent.
pub fn steady(call: Call) -> f64 {
    let (sequences, positions) = (f64::from(call.sequences), f64::from(call.positions));
    match call.work {
        ProfiledWork::Compute { op, .. } if op.is_attention() => 1e5 * sequences * positions,
        _ => 1e6 + 1e5 * sequences,
    }
}

fn profile(request: &ProfilingRequest, ns: impl Fn(Call) -> f64 + 'static) -> Profile {
    let mut runner = FakeRunner::new(ns);
    run::profile(request, &machine(), &mut runner, &mut |_, _, _| {}).expect("a profile")
}

/// A request that has all the time that it wants.
fn unhurried(config: &model::config::ModelConfig) -> ProfilingRequest {
    ProfilingRequest { budget: Duration::from_secs(3600), ..request(config) }
}

fn alone<'a>(
    profile: &'a Profile,
    lane: LaneId,
    op: Op,
) -> impl Iterator<Item = &'a WorkMeasurement> + 'a {
    profile.measurements.work.iter().filter(move |measured| {
        let is_op = matches!(measured.key.work,
            ProfiledWork::Compute { op: other, chunk: None, .. } if other == op);
        is_op && measured.key.lane == lane && measured.concurrent.is_empty()
    })
}

#[test]
fn what_no_time_was_left_for_is_named_and_the_rest_is_enough() {
    let config = opt();
    for (batch_size, micro_sequences) in [(4, 3), (4, 1), (1, 1)] {
        let shape = RunShape { batch_size, micro_sequences, ..SHAPE };
        let mut hurried = ProfilingRequest::for_shape(&config, &shape, THREADS);
        (hurried.chunks, hurried.budget) = (vec![2], Duration::ZERO);
        let profile = profile(&hurried, steady);
        let plans = plans(&config, &shape, &Formats::plain(&config), 2);
        assert!(simulate_all(&profile, &plans) > 10_000, "{batch_size} by {micro_sequences}");
        let skipped = |what: &str| {
            let points = profile.measurements.skipped.iter().filter(|point| point.what == what);
            points.map(|point| (point.extent.sequences, point.extent.positions)).collect::<Vec<_>>()
        };
        let attention: Vec<(u32, u32)> =
            if batch_size == 4 { vec![(4, 15), (1, 15)] } else { vec![(1, 15)] };
        assert_eq!(skipped("attention and KV transfer"), attention);
        assert_eq!(skipped("attention and KV transfer in 2 parts"), attention);
        assert_eq!(skipped("attention over prompts"), [], "both lengths are measured");
    }
    let skipped = profile(&unhurried(&config), steady).measurements.skipped;
    assert!(skipped.iter().all(|point| point.what.contains(" concurrently with ")), "{skipped:?}");
}

#[test]
fn one_point_prices_itself_and_nothing_else() {
    let config = opt();
    let mut profile = profile(&unhurried(&config), steady);
    let plans = plans(&config, &SHAPE, &Formats::plain(&config), 2);
    let plan = plans.iter().find(|plan| !plan.map.uses_gpu()).expect("a plan without a device");
    let of_rows = |rows: u32| {
        move |measured: &WorkMeasurement| {
            let attends =
                matches!(measured.key.work, ProfiledWork::Compute { op: Op::Attention, .. });
            attends && measured.key.phase == Some(Phase::Prefill) && measured.point.rows != rows
        }
    };
    // A batch of 4 in streams of 3: one of three prompts, one of a single one.
    let drop = of_rows(3);
    profile.measurements.work.retain(|measured| !drop(measured));
    let error = ProfileCosts::new(&profile, plan, WORKLOAD).expect_err("one row is not measured");
    assert!(matches!(error, ProfileCostError::Incomplete { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("at 3 rows, 5, 9 positions only"), "{text}");
    assert!(text.contains("to predict 1 rows, 9 positions"), "{text}");
}

#[test]
fn contention_that_never_showed_is_named() {
    let config = opt();
    // Copies that take no time lie beside nothing for long.
    let profile = profile(&unhurried(&config), |call| match call.work {
        ProfiledWork::CopyWeights { .. } => 1.0,
        _ => steady(call),
    });
    let skipped = &profile.measurements.skipped;
    let what = "cpu.compute concurrently with h2d.weights";
    assert!(skipped.iter().any(|point| point.what == what), "{skipped:?}");
}

#[test]
fn equal_work_that_differs_is_measured_again_and_pooled_with_a_mark() {
    let config = opt();
    let (cpu, rows) = (LaneId::CPU_COMPUTE, u32::from(SHAPE.batch_size).div_ceil(4));
    // K takes twice as long as Q and V, of a part of the batch on the CPU alone.
    let slow_k = move |call: Call| match call.work {
        ProfiledWork::Compute { op: Op::K, .. } if call.lane == cpu && call.sequences == rows => {
            2.0 * steady(call)
        }
        _ => steady(call),
    };
    let (slow, even) = (profile(&unhurried(&config), slow_k), profile(&unhurried(&config), steady));
    let at = |profile: &Profile, op, rows| {
        let measured = alone(profile, cpu, op).find(|measured| measured.point.rows == rows);
        measured.unwrap_or_else(|| panic!("{op:?} at {rows}")).clone()
    };
    let [q, k, v] = [Op::Q, Op::K, Op::V].map(|op| at(&slow, op, rows));
    assert!(q.disputed && k.disputed && v.disputed);
    assert!(q.time == k.time && k.time == v.time, "{q:?} {k:?}");
    // The sum of the three is what was measured, and the spread reaches from one to the other.
    let one_ns = 1e6 + 1e5 * f64::from(rows);
    assert!((3.0 * q.time.mean_ns / (4.0 * one_ns) - 1.0).abs() < 1e-3, "{:?}", q.time);
    assert!(!at(&slow, Op::Q, 4).disputed && !at(&slow, Op::Out, rows).disputed);
    // Two rounds more than where nothing differs.
    let count = |profile: &Profile| {
        let time = at(profile, Op::Out, rows).time;
        time.samples + time.outliers
    };
    let copies_of_a_layer = 1;
    assert_eq!(count(&slow) - count(&even), copies_of_a_layer * 2 * REPETITIONS_MIN);
}

#[test]
fn equal_work_that_agrees_is_not_disputed() {
    let config = opt();
    let profile = profile(&unhurried(&config), steady);
    assert!(profile.measurements.work.iter().all(|measured| !measured.disputed));
}

#[test]
fn shorter_prompts_are_priced_from_two_lengths() {
    let config = llama();
    // Each position looks back at those before it.
    let squares = |positions: f64| 1e6 * positions + 3e5 * positions * positions;
    let profile = profile(&unhurried(&config), move |call| match call.work {
        ProfiledWork::Compute { op: Op::Attention, .. } => {
            f64::from(call.sequences) * squares(call.positions.into())
        }
        _ => steady(call),
    });
    let plans = plans(&config, &SHAPE, &Formats::plain(&config), 2);
    let plan = plans.iter().find(|plan| !plan.map.uses_gpu()).expect("a plan without a device");
    for prompt_len in [1, 3, 5, 7, 9] {
        let costs = ProfileCosts::new(&profile, plan, RunLength { prompt_len }).expect("priced");
        let list = plan.prefill().lane(LaneId::CPU_COMPUTE).expect("a lane");
        let of_attention = |instruction: &Instruction| match instruction {
            Instruction::Compute(compute) => compute.op == Op::Attention,
            _ => false,
        };
        let (index, work) = (0..)
            .zip(&list.instructions)
            .find(|(_, instruction)| of_attention(instruction))
            .expect("attention");
        let place = Place { program: ProgramId::PREFILL, lane: list.lane, instruction: index };
        let (ns, expected_ns) = (costs.work_ns(place, work, 0), 3.0 * squares(prompt_len.into()));
        assert!((ns / expected_ns - 1.0).abs() < 1e-3, "{prompt_len}: {ns} for {expected_ns}");
    }
}

#[test]
fn tokens_drawn_from_a_small_vocabulary_are_no_samples() {
    let config = opt();
    let profile = profile(&unhurried(&config), |call| match call.work {
        ProfiledWork::Compute { op: Op::Sample, .. } => 1e4 * call.vocabulary as f64,
        _ => steady(call),
    });
    for lane in [LaneId::CPU_COMPUTE, LaneId::GPU_COMPUTE] {
        let mut count = 0;
        for measured in alone(&profile, lane, Op::Sample) {
            assert_eq!(measured.time.mean_ns, 1e4 * config.vocab_size as f64, "{measured:?}");
            count += 1;
        }
        assert!(count >= 2, "{lane:?}");
    }
}

#[test]
fn a_profile_with_and_one_without_a_device_share_the_time() {
    let of = |threads| ProfilingRequest::for_shape(&opt(), &SHAPE, threads).budget;
    let both = of(ComputeThreads { cpu: 1, gpu: 1 }) + of(ComputeThreads { cpu: 2, gpu: 0 });
    assert!(both <= Duration::from_secs(30), "{both:?}");
}

#[test]
fn caches_are_equal_work_too() {
    let config = opt();
    let profile = profile(&unhurried(&config), |call| match call.work {
        ProfiledWork::Append { cache: Kv::V, .. } => 3.0 * steady(call),
        _ => steady(call),
    });
    let appends = profile
        .measurements
        .work
        .iter()
        .filter(|measured| matches!(measured.key.work, ProfiledWork::Append { .. }));
    let mut count = 0;
    for append in appends {
        assert!(append.disputed, "{append:?}");
        count += 1;
    }
    assert!(count >= 8);
}

/// One number of threads for all classes: that with which a layer takes least.
#[test]
fn fewer_threads_are_better_where_a_layer_takes_less() {
    let config = opt();
    let request = ProfilingRequest {
        threads: ComputeThreads { cpu: 4, gpu: 0 },
        device: None,
        chunks: Vec::new(),
        sweep_threads_max: 4,
        ..unhurried(&config)
    };
    let best = |linear_ns: [f64; 3], attention_ns: [f64; 3]| {
        let ns = move |call: Call| {
            let place = usize::from(call.threads).ilog2() as usize;
            match call.work {
                ProfiledWork::Compute { op: Op::Attention, .. } => attention_ns[place],
                ProfiledWork::Compute { op, .. } if op.has_matrix(&opt()) => linear_ns[place],
                _ => 10.0,
            }
        };
        let measurements = profile(&request, ns).measurements;
        assert_eq!(measurements.sweep.len(), 3);
        measurements.best_cpu_threads
    };
    assert_eq!(best([9e5, 5e5, 3e5], [1e5, 1e5, 1e5]), 4);
    assert_eq!(best([9e5, 3e5, 5e5], [1e5, 1e5, 1e5]), 2);
    // Attention alone would have two, of which the linears would take more.
    assert_eq!(best([9e5, 5e5, 3e5], [1e5, 5e4, 1e5]), 4);
    // The other way round attention takes most of a layer.
    assert_eq!(best([9e3, 5e3, 3e3], [9e5, 5e5, 8e5]), 2);
    // What is nearly as good is no better.
    assert_eq!(best([9e5, 2.95e5, 3e5], [1e5, 1e5, 1e5]), 4);
}
