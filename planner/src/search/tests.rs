//! Choices on machines whose costs are so simple that the answer is known.

use std::cell::RefCell;

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use program::ir::{Instruction, Program};
use program::map::{ChunkOrder, Chunking, ComputeDevice};
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts, simulate};
use program::topology::{LaneId, LaneSet, MemoryId};

use super::{
    Candidate, CostError, Estimator, MeasuredFactors, Pricing, Rehearser, SearchEffort,
    SearchError, SearchRequest, SearchResult, TimeFactors, TrialStatus, choose, operation_table,
    predict,
};
use crate::budget::{MemoryLimits, PlacementRequest};
use crate::lia::OffloadVector;
use crate::policy::name::PolicyName;
use crate::policy::{DefaultTiers, Formats, Placement, Policy};
use crate::split::{Split, parse_split};

/// All instructions of a lane take the same time.
#[derive(Debug, Clone, Copy)]
struct FlatCosts {
    cpu_ns: f64,
    gpu_ns: f64,
    link_ns: f64,
}

impl SimulationCosts for FlatCosts {
    fn work_ns(&self, place: Place, _: &Instruction, _: u32) -> f64 {
        match place.lane {
            LaneId::CPU_COMPUTE | LaneId::CPU_APPEND => self.cpu_ns,
            LaneId::GPU_COMPUTE | LaneId::GPU_DECOMPRESS => self.gpu_ns,
            LaneId::H2D_WEIGHTS => self.link_ns,
            _ => 1.0,
        }
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}

impl Pricing for FlatCosts {
    fn costs(&self, _: &Plan, _: &Program, _: u32) -> Result<Box<dyn SimulationCosts>, CostError> {
        Ok(Box::new(*self))
    }
}

/// A stage on which plans with a device, and those without one, take longer than simulated by a
/// factor.
#[derive(Debug)]
struct SlowRehearser {
    pricing: FlatCosts,
    with_device: Option<f64>,
    alone: Option<f64>,
    /// Numbers of layers and of steps of each rehearsed plan.
    seen: RefCell<Vec<(usize, u32)>>,
}

impl Rehearser for SlowRehearser {
    fn decode_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        self.seen.borrow_mut().push((plan.config.num_layers, steps));
        let times = if plan.map.uses_gpu() { self.with_device } else { self.alone };
        let simulated = simulate(plan.decode(), &self.pricing, steps).expect("a program");
        times.map(|times| times * simulated.total_ns)
    }
}

/// An emulated device, which leaves fewer cores to the CPU.
#[derive(Debug)]
struct EmulatedDevicePricing {
    alone: FlatCosts,
    beside: FlatCosts,
}

impl Pricing for EmulatedDevicePricing {
    fn costs(
        &self,
        plan: &Plan,
        _: &Program,
        _: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        Ok(Box::new(if plan.map.uses_gpu() { self.beside } else { self.alone }))
    }
}

/// Every plan has run three times.
#[derive(Debug)]
struct RecordedRunsPricing {
    pricing: FlatCosts,
    factors: TimeFactors,
}

impl Pricing for RecordedRunsPricing {
    fn costs(&self, _: &Plan, _: &Program, _: u32) -> Result<Box<dyn SimulationCosts>, CostError> {
        Ok(Box::new(self.pricing))
    }

    fn measured_factors(&self, _: &Plan) -> Option<MeasuredFactors> {
        Some(MeasuredFactors { factors: self.factors, runs: 3 })
    }
}

#[derive(Debug)]
struct NoMeasurements;

impl Pricing for NoMeasurements {
    fn costs(&self, _: &Plan, _: &Program, _: u32) -> Result<Box<dyn SimulationCosts>, CostError> {
        Err(CostError("Nothing was measured.".to_owned()))
    }
}

fn config(layers: usize) -> ModelConfig {
    let mut config = find_known("opt-125m").expect("known").config;
    config.num_layers = layers;
    config
}

const HOMES: DefaultTiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM };
const PLENTY: MemoryLimits = MemoryLimits {
    dram_bytes: 1 << 40,
    vram_bytes: None,
    vram_is_dram: true,
    slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
    device_scratch: None,
};

/// Returns limits with device memory for the slots of a streamed layer, and for no resident layer.
fn no_room() -> MemoryLimits {
    MemoryLimits {
        vram_bytes: Some(5 * config(1).layer_weight_bytes(0, Dtype::Bf16) as u64 / 2),
        ..PLENTY
    }
}

fn asked<T>(
    layers: usize,
    limits: MemoryLimits,
    then: impl FnOnce(&PlacementRequest<'_>) -> T,
) -> T {
    let config = config(layers);
    let formats = Formats::plain(&config);
    then(&PlacementRequest {
        config: &config,
        placement: &Placement::from_policy(Policy::CpuOnly),
        formats: &formats,
        fuse_attention: true,
        dtype: Dtype::Bf16,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 16,
        max_new: 8,
        logprobs: 0,
        prefill_chunk: None,
        limits: &limits,
        storage: None,
        routing: None,
    })
}

fn question<'a>(
    request: &'a PlacementRequest<'a>,
    policy: PolicyName,
    pricing: &'a dyn Pricing,
) -> SearchRequest<'a> {
    SearchRequest {
        request,
        batches: 2,
        batch_size: 2,
        policy,
        chunkings: &[None],
        pricing,
        effort: SearchEffort::Full,
        rehearser: None,
    }
}

/// Returns true if both devices take part in decode.
fn is_split(chosen: &SearchResult) -> bool {
    let has = |device| chosen.plan.map.decode.layers.iter().flatten().any(|d| *d == device);
    has(ComputeDevice::Cpu) && has(ComputeDevice::Gpu)
}

#[test]
fn the_faster_device_gets_the_work() {
    let fast_cpu = FlatCosts { cpu_ns: 10.0, gpu_ns: 100.0, link_ns: 1000.0 };
    let fast_gpu = FlatCosts { cpu_ns: 1000.0, gpu_ns: 10.0, link_ns: 1.0 };
    let slow_link = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    asked(3, no_room(), |request| {
        let choice = |pricing| choose(&question(request, PolicyName::Auto, pricing)).expect("one");
        assert_eq!(choice(&fast_cpu).name, PolicyName::CpuOnly);
        let chosen = choice(&fast_gpu);
        assert!(chosen.plan.map.decode.layers[0].iter().all(|d| *d == ComputeDevice::Gpu));
        // Both devices work while the link is busy.
        let chosen = choice(&slow_link);
        assert!(is_split(&chosen), "{:?}", chosen.placement);
        let (first, second) = (&chosen.candidates[0], &chosen.candidates[1]);
        assert!(first.estimate.step_ns <= second.estimate.step_ns);
    });
}

#[test]
fn no_map_is_considered_under_two_names() {
    let fast_cpu = FlatCosts { cpu_ns: 10.0, gpu_ns: 100.0, link_ns: 1000.0 };
    asked(3, PLENTY, |request| {
        let of = |policy| choose(&question(request, policy, &fast_cpu)).expect("one");
        // LIA alone also leaves everything to the CPU here.
        assert!(!of(PolicyName::Lia).plan.map.uses_gpu());
        let chosen = of(PolicyName::Auto);

        assert_eq!(chosen.candidates[0].placement, chosen.placement);
        let alone = chosen.candidates.iter().filter(|one| !one.map.uses_gpu());
        let names: Vec<&str> = alone.map(|one| one.name.name()).collect();
        assert_eq!(names, ["cpu-only"]);
    });
}

#[test]
fn a_rehearsal_scales_what_is_predicted_and_may_change_the_choice() {
    let pricing = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    asked(3, no_room(), |request| {
        let chosen = |with_device, alone| {
            let seen = RefCell::default();
            let stage = SlowRehearser { pricing, with_device, alone, seen };
            let question = question(request, PolicyName::Auto, &pricing);
            let chosen =
                choose(&SearchRequest { rehearser: Some(&stage), ..question }).expect("one");
            let best = &chosen.candidates[0];
            assert_eq!((best.name, &best.placement), (chosen.name, &chosen.placement));
            (chosen, stage.seen.into_inner())
        };
        let plain = choose(&question(request, PolicyName::Auto, &pricing)).expect("one");
        assert!(is_split(&plain), "{:?}", plain.placement);
        // All plans are slightly slower: the choice does not change, and the fastest plan was
        // itself rehearsed. In this small case all layers and all steps are rehearsed.
        let (little, seen) = chosen(Some(1.25), Some(1.25));
        assert_eq!((little.name, &little.placement), (plain.name, &plain.placement));
        let expected_ns = plain.predicted.decode_ns * 1.25;
        assert!((little.predicted.decode_ns / expected_ns - 1.0).abs() < 1e-9);
        assert_eq!(little.predicted.prefill_ns, plain.predicted.prefill_ns);
        assert!(seen.iter().all(|seen| *seen == (3, 7)), "{seen:?}");
        // Plans that use the device are much slower: only the CPU is left.
        let (much, seen) = chosen(Some(100.0), Some(1.0));
        assert!(much.plan.map.decode.layers.iter().flatten().all(|d| *d == ComputeDevice::Cpu));
        let best = &much.candidates[0];
        assert_eq!((best.trial, best.factors), (TrialStatus::Rehearsed, TimeFactors::NONE));
        assert!(seen.len() <= 16, "{seen:?}");
        // Plans that cannot be rehearsed keep their estimates.
        let (none, seen) = chosen(None, None);
        assert_eq!((none.placement, none.predicted), (plain.placement, plain.predicted));
        assert_eq!(seen.len(), 1);
    });
}

#[test]
fn attention_that_no_split_cuts_is_considered_once_however_it_could_be_cut() {
    let pricing = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    let cut = |order| Some(Chunking { order, chunks: 2 });
    let chunkings = [None, cut(ChunkOrder::Scores), cut(ChunkOrder::Attention)];
    asked(3, PLENTY, |request| {
        let question = question(request, PolicyName::TwoSplit, &pricing);
        let chosen = choose(&SearchRequest { chunkings: &chunkings, ..question }).expect("one");
        let programs = |one: &Candidate| {
            let request = PlacementRequest { placement: &one.placement, ..*request };
            request.plan(2, 2).expect("it was estimated").programs
        };
        let all: Vec<_> = chosen.candidates.iter().map(programs).collect();
        let is_first = |(place, one)| !all[..place].contains(one);
        assert!(all.iter().enumerate().all(is_first), "the same programs twice");
    });
}

#[test]
fn runs_scale_what_is_predicted_of_their_plan_and_choose_nothing() {
    let pricing = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    let ran = RecordedRunsPricing { pricing, factors: TimeFactors { prefill: 0.5, decode: 1.75 } };
    asked(3, no_room(), |request| {
        let plain = choose(&question(request, PolicyName::Auto, &pricing)).expect("one");
        let seen = RefCell::default();
        let (with_device, alone) = (Some(1.25), Some(1.25));
        let stage = SlowRehearser { pricing, with_device, alone, seen };
        let question =
            SearchRequest { rehearser: Some(&stage), ..question(request, PolicyName::Auto, &ran) };
        let chosen = choose(&question).expect("one");
        assert_eq!((chosen.name, &chosen.placement), (plain.name, &plain.placement));
        // Finished runs are more accurate than the rehearsal, which does not measure prompts.
        assert!((chosen.predicted.prefill_ns / plain.predicted.prefill_ns - 0.5).abs() < 1e-9);
        assert!((chosen.predicted.decode_ns / plain.predicted.decode_ns - 1.75).abs() < 1e-9);
        assert_eq!(chosen.candidates[0].trial, TrialStatus::CompletedRuns(3));
        assert!((chosen.step_ns() / plain.step_ns() - 1.75).abs() < 1e-9);
        assert!(chosen.candidates[1..].iter().all(|one| one.factors.prefill == 1.0));
    });
}

#[test]
fn the_split_is_the_best_of_all_intervals() {
    let pricing = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    asked(4, PLENTY, |request| {
        let chosen = choose(&question(request, PolicyName::TwoSplit, &pricing)).expect("one");
        let estimator = Estimator {
            request,
            batches: 2,
            batch_size: 2,
            pricing: &pricing,
            tiers: HOMES,
            has_small_streams: false,
        };
        let count = request.config.layer_ops(0).len();
        let all = (0..count).flat_map(|start| (start + 1..=count).map(move |end| (start, end)));
        let least = all
            .flat_map(|(start, end)| {
                let split = Split { start, end };
                let one = Placement::from_policy(Policy::TwoSplit { split, chunking: None });
                [Some(MemoryId::DRAM), Some(MemoryId::VRAM)]
                    .map(|kv| Placement { kv, ..one.clone() })
            })
            .map(|placement| estimator.step_ns(&placement).expect("priced"))
            .fold(f64::INFINITY, f64::min);
        assert_eq!(chosen.candidates[0].estimate.step_ns, least);
    });
}

#[test]
fn an_estimate_of_few_layers_is_that_of_all() {
    let pricing = FlatCosts { cpu_ns: 100.0, gpu_ns: 50.0, link_ns: 300.0 };
    for policy in [PolicyName::CpuOnly, PolicyName::GpuOnly, PolicyName::Lia, PolicyName::Flexgen] {
        asked(12, PLENTY, |request| {
            let chosen = choose(&question(request, policy, &pricing)).expect("one");
            let estimated = chosen.candidates[0].estimate.total_ns(request.max_new);
            let predicted = predict(&chosen.plan, &pricing).expect("priced").total_ns();
            assert!(
                (estimated / predicted - 1.0).abs() < 0.03,
                "{policy:?} {estimated} {predicted}"
            );
        });
    }
}

#[test]
fn layers_stay_where_the_device_has_room() {
    let pricing = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    let layer_bytes = config(1).layer_weight_bytes(0, Dtype::Bf16) as u64;
    let chosen = |vram_bytes| {
        asked(6, MemoryLimits { vram_bytes: Some(vram_bytes), ..PLENTY }, |request| {
            choose(&question(request, PolicyName::TwoSplit, &pricing)).expect("one")
        })
    };
    let (small, large) = (chosen(3 * layer_bytes), chosen(6 * layer_bytes));
    let layers = |chosen: &SearchResult| chosen.placement.residency.layers.len();
    assert!(layers(&small) < layers(&large), "{:?}", large.placement);
    assert!(large.predicted.total_ns() < small.predicted.total_ns());
    assert!(!large.plan.resident.is_empty());
}

/// This holds even for a part of the run that does not use the device.
#[test]
fn prompts_on_the_cpu_are_priced_beside_the_device_that_a_run_uses() {
    let beside = FlatCosts { cpu_ns: 100.0, gpu_ns: 10.0, link_ns: 300.0 };
    let alone = FlatCosts { cpu_ns: 50.0, ..beside };
    let pricing = &EmulatedDevicePricing { alone, beside };
    asked(6, PLENTY, |request| {
        let (tiers, has_small_streams) = (HOMES, false);
        let (batches, batch_size) = (2, 2);
        let estimator =
            Estimator { request, batches, batch_size, pricing, tiers, has_small_streams };
        let split = Split { start: 0, end: 0 };
        let policies = [
            Policy::TwoSplit { split, chunking: None },
            Policy::Lia {
                prefill: OffloadVector::FULL_CPU,
                decode: OffloadVector::FULL_CPU,
                spread: false,
            },
        ];
        for policy in policies {
            let placement = Placement { prefill_on_cpu: true, ..Placement::from_policy(policy) };
            assert!(!estimator.map(&placement).uses_gpu());
            let [with, without] = [true, false].map(|uses_gpu| {
                estimator.uniform_prefill_ns(&placement, uses_gpu).expect("priced")
            });
            assert_eq!(with, 2.0 * without, "{policy:?}");
        }
    });
}

#[test]
fn the_table_has_what_the_costs_say() {
    let pricing = FlatCosts { cpu_ns: 7e6, gpu_ns: 2e6, link_ns: 3e6 };
    asked(2, PLENTY, |request| {
        let estimator = Estimator {
            request,
            batches: 2,
            batch_size: 2,
            pricing: &pricing,
            tiers: HOMES,
            has_small_streams: false,
        };
        let table = operation_table(&estimator, None).expect("priced");
        table.validate().expect("valid");
        let op = |name: &str| table.ops.iter().find(|op| op.name == name).expect("an op").clone();
        assert_eq!((op("fc0").cpu_ms, op("fc0").gpu_ms, op("fc0").h2d_ms), (7.0, 2.0, 3.0));
        assert!(op("scores").kv && op("wv").kv && !op("softmax").kv);
        // Three operations instead of one.
        let fused = table.fused.expect("fused");
        assert_eq!((fused.cpu_saved_ms, fused.gpu_saved_ms), (14.0, 4.0));
    });
}

#[test]
fn what_cannot_be_priced_or_placed_is_said() {
    let none = MemoryLimits { dram_bytes: 1 << 20, ..PLENTY };
    let pricing = FlatCosts { cpu_ns: 1.0, gpu_ns: 1.0, link_ns: 1.0 };
    asked(2, none, |request| {
        let error = choose(&question(request, PolicyName::Auto, &pricing)).expect_err("too large");
        assert!(matches!(error, SearchError::Plan(_)), "{error}");
        assert!(error.to_string().contains("GiB"), "{error}");
    });
    asked(2, PLENTY, |request| {
        let error =
            choose(&question(request, PolicyName::TwoSplit, &NoMeasurements)).expect_err("blind");
        assert_eq!(error.to_string(), "Nothing was measured.");
    });
}

/// Prompts above 4096 tokens are estimated in chunks, both with whole caches and with caches in
/// chunks.
#[test]
fn long_prompts_are_estimated_in_chunks() {
    asked(2, PLENTY, |request| {
        let request = &PlacementRequest { max_prompt: 5000, max_context: 5008, ..*request };
        let pricing = &FlatCosts { cpu_ns: 1.0, gpu_ns: 1.0, link_ns: 1.0 };
        let estimator = Estimator {
            request,
            batches: 1,
            batch_size: 2,
            pricing,
            tiers: HOMES,
            has_small_streams: false,
        };
        let chunk = |policy| {
            estimator
                .plan(&Placement::from_policy(policy), 2)
                .expect("compiles")
                .shape
                .prefill_chunk
        };
        let chunking = Some(Chunking { order: ChunkOrder::Scores, chunks: 4 });
        let split = parse_split("scores.1:ln1", request.config, chunking).expect("a split");
        assert_eq!(chunk(Policy::TwoSplit { split, chunking }), 2048);
        assert_eq!(chunk(Policy::CpuOnly), 2048);
    });
}
