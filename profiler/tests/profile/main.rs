//! A tiny model profiled from end to end, and its plans priced and simulated.

mod common;
mod fake;
mod kept;
mod sure;

use std::fs;
use std::time::Duration;

use common::{InProcessRunner, llama, mixture, opt};
use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::quantized_format::{Grouped, WeightFormat};
use planner::policy::{DefaultTiers, Formats, Policy, device_map};
use planner::split::Split;
use profiler::key::ProfiledWork;
use profiler::{
    CacheMiss, ComputeThreads, MachineIdentity, Profile, ProfileCache, ProfileCosts, ProfileError,
    ProfilingRequest, REPETITIONS_MIN, RunLength, load_or_measure, plan_key, rehearse, run,
};
use program::compile::compile;
use program::formats::{KvFormat, WeightFormats};
use program::ir::{Instruction, LaneProgram, ProgramId};
use program::map::{ChunkOrder, Chunking, layer_list};
use program::plan::{Plan, RunShape};
use program::simulate::{Place, SimulationCosts, simulate};
use program::topology::{LaneId, LaneSet, MemoryId};

const SHAPE: RunShape = RunShape {
    batches: 2,
    batch_size: 4,
    max_prompt: 9,
    shared_prompt: 0,
    max_context: 15,
    max_new: 6,
    logprobs: 0,
    micro_sequences: 3,
    prefill_chunk: 0,
    serves: false,
    page_positions: 0,
    kv_pages: 0,
    checkpoints: 0,
    logits_rows: 0,
    device_slots: 0,
    dtype: Dtype::F32,
};
const THREADS: ComputeThreads = ComputeThreads { cpu: 1, gpu: 1 };
const WORKLOAD: RunLength = RunLength { prompt_len: 9 };

fn request(config: &ModelConfig) -> ProfilingRequest {
    let mut request = ProfilingRequest::for_shape(config, &SHAPE, THREADS);
    request.chunks = vec![2];
    request.sweep_threads_max = 2;
    request.budget = Duration::from_secs(3);
    request
}

fn machine() -> MachineIdentity {
    // Tiny layers never leave a real cache; one copy of each will do.
    MachineIdentity { last_level_cache_bytes: 0, ..MachineIdentity::this(None) }
}

fn measure(request: &ProfilingRequest) -> Profile {
    let mut runner = InProcessRunner::default();
    let mut last = 0;
    let profile = run::profile(request, &machine(), &mut runner, &mut |done, total, what| {
        assert!(last <= done && done <= total && !what.is_empty(), "{last} {done} {total} {what}");
        last = done;
    });
    assert_eq!(last, 1000, "progress reaches its end");
    profile.expect("the tiny model is profiled")
}

/// Every compiled two-split plan and both whole-device ones, with the given formats.
fn plans(config: &ModelConfig, shape: &RunShape, formats: &Formats, chunks: u16) -> Vec<Plan> {
    let chunkings =
        [ChunkOrder::Scores, ChunkOrder::Attention].map(|order| Some(Chunking { order, chunks }));
    let mut policies = vec![Policy::CpuOnly, Policy::GpuOnly];
    for chunking in [None, chunkings[0], chunkings[1]] {
        let entries = layer_list(config, 0, chunking).len();
        for start in 0..=entries {
            for end in start..=entries {
                policies.push(Policy::TwoSplit { split: Split { start, end }, chunking });
            }
        }
    }
    let mut plans = Vec::new();
    for policy in policies {
        for (fuse, home) in [(true, MemoryId::DRAM), (false, MemoryId::VRAM)] {
            let homes = DefaultTiers { kv: home, prefill_hidden: home };
            let mut map = device_map(&policy, config, fuse, homes);
            formats.apply(&mut map);
            plans.push(compile(config, shape, &map).expect("the map compiles"));
        }
    }
    plans
}

#[test]
fn every_placement_is_rehearsed_behind_prompts_that_nobody_computed() {
    let config = llama();
    let mut keys = std::collections::BTreeSet::new();
    // Every seventh of them starts workers quickly enough for a test.
    for plan in plans(&config, &SHAPE, &Formats::plain(&config), 2).iter().step_by(7) {
        let mut runner = InProcessRunner::default();
        let found = rehearse(plan, 5, THREADS, None, &mut runner).expect("a safe plan runs");
        assert!(found.decode_ns() > 0.0 && found.groups_ns.len() >= 3, "{found:?}");
        assert_eq!((found.steps, &found.plan), (5, &plan_key(plan)));
        assert_eq!(plan_key(plan), plan_key(&plan.clone()));
        keys.insert(found.plan);
    }
    assert!(keys.len() > 10, "different plans have different keys: {}", keys.len());
}

#[test]
fn a_plan_whose_longest_prompts_have_few_new_tokens_is_rehearsed_behind_shorter_ones() {
    let config = llama();
    let ragged = RunShape { max_context: SHAPE.max_prompt + 1, ..SHAPE };
    let plans = plans(&config, &ragged, &Formats::plain(&config), 2);
    let plan = plans.first().expect("a plan");
    let mut runner = InProcessRunner::default();
    let rehearsal = rehearse(plan, 5, THREADS, None, &mut runner).expect("they fit the cache");
    assert!(rehearsal.decode_ns() > 0.0, "{rehearsal:?}");
}

#[test]
fn a_plan_that_is_not_safe_is_not_rehearsed() {
    let config = opt();
    let signals = |plan: &Plan| plan.decode().lanes.iter().any(|list| list.signals_per_step > 0);
    let mut plans = plans(&config, &SHAPE, &Formats::plain(&config), 2).into_iter();
    let mut plan = plans.find(signals).expect("a plan of two lanes");
    let list = plan
        .program_mut(ProgramId::DECODE)
        .lanes
        .iter_mut()
        .find(|list| list.signals_per_step > 0)
        .expect("signals");
    let place = list.instructions.iter().position(|i| *i == Instruction::Signal).expect("one");
    list.instructions.remove(place);
    let mut runner = InProcessRunner::default();
    let error = rehearse(&plan, 2, THREADS, None, &mut runner).expect_err("unsafe");
    assert!(matches!(error, ProfileError::Plan(_)), "{error}");
}

/// Prices and simulates all plans; returns how many instructions were priced.
fn simulate_all(profile: &Profile, plans: &[Plan]) -> usize {
    let mut priced = 0;
    for plan in plans {
        let costs = ProfileCosts::new(profile, plan, WORKLOAD).expect("everything has a cost");
        for (program, steps) in [(plan.prefill(), 1), (plan.decode(), 4)] {
            let timeline = simulate(program, &costs, steps).expect("it runs to its end");
            assert!(timeline.total_ns.is_finite() && timeline.total_ns > 0.0);
            assert!(timeline.spans.iter().all(|span| span.end_ns >= span.start_ns));
            priced += timeline.spans.len();
        }
    }
    priced
}

fn check_figures(profile: &Profile) {
    assert!(profile.measurements.work.len() > 100, "{}", profile.measurements.work.len());
    for measured in &profile.measurements.work {
        let time = measured.time;
        assert!(time.median_ns.is_finite() && time.median_ns >= 0.0, "{measured:?}");
        assert!(time.min_ns <= time.median_ns && time.median_ns <= time.max_ns, "{measured:?}");
        assert!(time.samples >= 1, "{measured:?}");
        let computes = matches!(measured.key.work, ProfiledWork::Compute { .. });
        assert!(!computes || time.median_ns > 0.0, "{measured:?}");
        // The workload's own shape is repeated in any case. Contention may have fewer samples: not
        // every span lies wholly beside another lane's.
        let repeated = time.samples + time.outliers >= REPETITIONS_MIN;
        let is_main =
            measured.point.rows == u32::from(SHAPE.batch_size) && measured.key.phase.is_none();
        assert!(repeated || !is_main || !measured.concurrent.is_empty(), "{measured:?}");
    }
    let overhead = profile.measurements.overhead;
    for stat in [overhead.wake, overhead.empty_span, overhead.between_spans] {
        let stat = stat.expect("every run has such samples");
        assert!(stat.median_ns.is_finite() && stat.median_ns > 0.0);
    }
    let classes: Vec<&str> = profile.measurements.sweep.iter().map(|s| s.class.as_str()).collect();
    assert_eq!(classes, ["linear", "attention", "small"]);
    for sweep in &profile.measurements.sweep {
        let threads: Vec<u16> = sweep.curve.iter().map(|point| point.threads).collect();
        assert_eq!(threads, [1, 2], "{sweep:?}");
        let best = sweep.curve.iter().find(|point| point.threads == sweep.best_threads);
        let best = best.expect("the best is on the curve").time.median_ns;
        assert!(sweep.curve.iter().all(|point| best <= point.time.median_ns), "{sweep:?}");
    }
}

#[test]
fn every_two_split_plan_of_an_opt_has_a_cost() {
    let config = opt();
    let profile = measure(&request(&config));
    check_figures(&profile);
    let formats = Formats::plain(&config);
    assert!(simulate_all(&profile, &plans(&config, &SHAPE, &formats, 2)) > 10_000);
    // What was not profiled is an error that says what.
    let three = plans(&config, &SHAPE, &formats, 3);
    let missing = three.iter().find_map(|plan| ProfileCosts::new(&profile, plan, WORKLOAD).err());
    let missing = missing.expect("chunks of three were not profiled").to_string();
    assert!(missing.contains("chunk") && missing.contains("of: 3"), "{missing}");
}

#[test]
fn compressed_plans_of_a_llama_have_costs_too() {
    let config = llama();
    let four_bits = WeightFormat::Grouped(Grouped::W4);
    let widened = WeightFormat::Grouped(Grouped::GGUF_Q2_K);
    let of = |format| WeightFormats::with_layers(&config, format);
    let (w4, q2_k) = (of(four_bits), of(widened));
    let mut request = request(&config);
    request.weight_formats.extend([w4.clone(), q2_k.clone()]);
    request.kv_formats.push(KvFormat::Four);
    let profile = measure(&request);
    check_figures(&profile);
    let plain = WeightFormats::plain(&config);
    for (weights, kv) in [
        (plain.clone(), KvFormat::Plain),
        (w4, KvFormat::Four),
        (q2_k, KvFormat::Plain),
        (plain, KvFormat::Four),
    ] {
        let formats = Formats { weights, kv, kv_select: None };
        assert!(simulate_all(&profile, &plans(&config, &SHAPE, &formats, 2)) > 10_000);
    }
    let has = |wanted: &dyn Fn(LaneId, &ProfiledWork) -> bool| {
        profile.measurements.work.iter().any(|one| wanted(one.key.lane, &one.key.work))
    };
    // 4 bits with f16 scales are multiplied as they are.
    let decompresses = |form| {
        has(&|_, work| matches!(work, ProfiledWork::Decompress { weights, .. } if *weights == form))
    };
    assert!(decompresses(widened) && !decompresses(four_bits));
    assert!(has(&|lane, work| lane == LaneId::GPU_COMPUTE
        && match work {
            ProfiledWork::Compute { op: Op::Down, weights, .. } => *weights == four_bits,
            _ => false,
        }));
    let over_four_bits = |work: &ProfiledWork| {
        matches!(work, ProfiledWork::Compute { kv: Some(KvFormat::Four), .. })
    };
    assert!(profile.measurements.work.iter().any(|m| over_four_bits(&m.key.work)));
}

/// Experts need a router's choice wherever they are measured, and windows end what attention costs.
#[test]
fn plans_of_a_mixture_with_windows_have_costs_too() {
    let config = mixture();
    let profile = measure(&request(&config));
    check_figures(&profile);
    let plans = plans(&config, &SHAPE, &Formats::plain(&config), 2);
    assert!(simulate_all(&profile, &plans) > 10_000);
    let expert =
        |work: &ProfiledWork| matches!(work, ProfiledWork::Compute { op: Op::ExpertDown, .. });
    for lane in [LaneId::CPU_COMPUTE, LaneId::GPU_COMPUTE] {
        let mut work = profile.measurements.work.iter();
        assert!(work.any(|one| one.key.lane == lane && expert(&one.key.work)), "{lane:?}");
    }
    let plan = &plans[0];
    let attention_ns = |layer: u16, prompt_len: u32, program: ProgramId| {
        let costs = ProfileCosts::new(&profile, plan, RunLength { prompt_len }).expect("costs");
        let lane = LaneId::CPU_COMPUTE;
        let list = plan.program(program).lane(lane).expect("a list");
        let attends = |one: &Instruction| match one {
            Instruction::Compute(one) => one.op.is_attention() && one.at.layer == Some(layer),
            _ => false,
        };
        let place = list.instructions.iter().position(attends).expect("attention");
        let (instruction, work) = (place as u32, &list.instructions[place]);
        costs.work_ns(Place { program, lane, instruction }, work, 0)
    };
    // The first layer looks back at four positions, the second at all.
    let decode = |layer, prompt_len| attention_ns(layer, prompt_len, ProgramId::DECODE);
    assert_eq!(decode(0, 9), decode(1, 4));
    assert_eq!(decode(0, 12), decode(0, 9));
    let prefill = |layer, prompt_len| attention_ns(layer, prompt_len, ProgramId::PREFILL);
    assert_eq!(prefill(0, 4), prefill(1, 4));
    let each_more = prefill(0, 9) - prefill(0, 8);
    assert!((each_more - (prefill(0, 8) - prefill(0, 7))).abs() <= 1e-6 * prefill(0, 9));
}

#[test]
fn attention_of_a_prompt_costs_the_same_however_it_is_cut() {
    let config = llama();
    let profile = measure(&request(&config));
    let homes = [MemoryId::DRAM, MemoryId::VRAM];
    for (policy, kv) in
        [(Policy::CpuOnly, homes[0]), (Policy::GpuOnly, homes[0]), (Policy::GpuOnly, homes[1])]
    {
        let map = device_map(&policy, &config, true, DefaultTiers { kv, prefill_hidden: kv });
        let attention_ns = |prefill_chunk| -> f64 {
            let shape = RunShape { prefill_chunk, ..SHAPE };
            let plan = compile(&config, &shape, &map).expect("the map compiles");
            assert!(simulate_all(&profile, std::slice::from_ref(&plan)) > 0);
            let costs = ProfileCosts::new(&profile, &plan, WORKLOAD).expect("costs");
            let ns = |list: &LaneProgram| -> f64 {
                let attends = |instruction: &Instruction| match instruction {
                    Instruction::Compute(compute) => compute.op.is_attention(),
                    _ => false,
                };
                let of = (0..).zip(&list.instructions).filter(|(_, i)| attends(i));
                let ns = |(instruction, work): (u32, &Instruction)| {
                    let place = Place { program: ProgramId::PREFILL, lane: list.lane, instruction };
                    costs.work_ns(place, work, 0)
                };
                of.map(ns).inspect(|ns| assert!(*ns >= 0.0, "{ns}")).sum()
            };
            plan.prefill().lanes.iter().map(ns).sum()
        };
        let ones = attention_ns(1);
        assert!(ones > 0.0);
        for chunk in [2, 3, 5] {
            let found = attention_ns(chunk);
            assert!((found / ones - 1.0).abs() < 1e-9, "{policy:?} in {chunk}: {found}, {ones}");
        }
    }
}

#[test]
fn rates_are_those_of_the_slowed_samples() {
    let config = opt();
    let mut profile = measure(&request(&config));
    let plans = plans(&config, &SHAPE, &Formats::plain(&config), 2);
    let plan = plans.iter().find(|plan| plan.map.uses_gpu()).expect("a plan with a device");
    // Whatever was measured: exactly half speed beside copies, a quarter beside both.
    let work = &mut profile.measurements.work;
    work.retain(|measured| measured.concurrent.is_empty());
    let alone = work.clone();
    for (beside, slowdown) in
        [(vec![LaneId::H2D_WEIGHTS], 2.0), (vec![LaneId::GPU_COMPUTE, LaneId::H2D_WEIGHTS], 4.0)]
    {
        work.extend(alone.iter().filter(|m| m.key.lane == LaneId::CPU_COMPUTE).map(|measured| {
            let mut slowed = measured.clone();
            slowed.concurrent.clone_from(&beside);
            slowed.time.mean_ns = slowdown * measured.time.mean_ns;
            slowed
        }));
    }
    let costs = ProfileCosts::new(&profile, plan, WORKLOAD).expect("everything has a cost");
    let busy = |lanes: &[LaneId]| lanes.iter().fold(LaneSet::EMPTY, |set, lane| set.with(*lane));
    let cpu = LaneId::CPU_COMPUTE;
    for (lanes, expected) in [
        (&[cpu][..], 1.0),
        (&[cpu, LaneId::H2D_WEIGHTS], 0.5),
        (&[cpu, LaneId::H2D_WEIGHTS, LaneId::D2H], 0.5),
        (&[cpu, LaneId::GPU_COMPUTE, LaneId::H2D_WEIGHTS], 0.25),
        // Not measured, nor any part of it.
        (&[cpu, LaneId::GPU_COMPUTE], 1.0),
        // Not measured; its worst measured part counts.
        (&[cpu, LaneId::GPU_DECOMPRESS, LaneId::GPU_COMPUTE, LaneId::H2D_WEIGHTS], 0.25),
    ] {
        assert!((costs.lane_rate(cpu, busy(lanes)) - expected).abs() < 1e-9, "{lanes:?}");
    }
    assert_eq!(costs.lane_rate(LaneId::H2D_WEIGHTS, busy(&[cpu, LaneId::H2D_WEIGHTS])), 1.0);
}

#[test]
fn the_cache_spares_measuring_until_something_changes() {
    let config = opt();
    let folder = tempfile::tempdir().expect("a folder");
    let cache = ProfileCache::new(folder.path());
    let mut request = request(&config);
    (request.chunks, request.budget) = (Vec::new(), Duration::ZERO);
    let mut runner = InProcessRunner::default();
    let mut ask = |force: bool, fails_at: Option<usize>| {
        runner.started = 0;
        runner.fails_at = fails_at;
        let found = load_or_measure(
            Some(&cache),
            &request,
            &machine(),
            force,
            &mut runner,
            &mut |_, _, _| {},
        );
        (found, runner.started)
    };
    let (first, started) = ask(false, None);
    let first = first.expect("it is profiled");
    assert!(matches!(first.measured_because, Some(CacheMiss::Missing)) && started > 0);
    assert!(first.not_stored.is_none());
    let (second, started) = ask(false, None);
    let second = second.expect("it is cached");
    assert!(second.measured_because.is_none() && started == 0);
    assert_eq!(second.profile, first.profile);
    // Interrupted half way: the earlier profile is still there.
    let (interrupted, started) = ask(true, Some(3));
    assert!(interrupted.is_err() && started == 3);
    let (third, started) = ask(false, None);
    assert!(started == 0 && third.expect("it is cached").profile == first.profile);
    // A field changed by hand: one new profile, which names the field.
    let path = cache.path(&first.profile.fingerprint);
    let text = fs::read_to_string(&path).expect("a readable file");
    assert!(text.contains("\"PCIe link\": \"none\""), "{text}");
    fs::write(&path, text.replace("\"PCIe link\": \"none\"", "\"PCIe link\": \"x16\""))
        .expect("a file");
    let (fourth, started) = ask(false, None);
    let reason = fourth.expect("it is profiled").measured_because.expect("it has changed");
    assert!(reason.to_string().contains("PCIe link x16 -> none"), "{reason}");
    assert!(started > 0);
    assert_eq!(ask(false, None).1, 0, "once");
    let (forced, started) = ask(true, None);
    let reason = forced.expect("it is profiled").measured_because;
    assert!(matches!(reason, Some(CacheMiss::Forced)) && started > 0);
}
