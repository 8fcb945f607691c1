//! Sequences owned by the device or by the host: whichever side attends for them, whatever the
//! shape of a step, and however often their caches move, their bits are those of a batch job on the
//! CPU.

use crate::common::placed::{cpu_only, shape, start};
use crate::common::served::{ServingHarness, run_alone, tokens};
use crate::common::{llama, opt};
use kernels::Variant;
use model::config::{Dtype, ModelConfig};
use model::layers::{LayerKind, Layers};
use model::ops::Value;
use planner::policy::{DefaultTiers, Policy as Placing, device_map};
use program::compile::compile;
use program::formats::KvFormat;
use program::ir::{Instruction, Moved, ProgramId};
use program::kv_owner::with_owners;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::topology::{LaneId, MemoryId};
use protocol::serving::clear_table;
use protocol::table::{HybridPolicy, StepTable};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use scheduler::StepCostCurve;
use scheduler::hybrid::{DeferredRows, IterationLimits, SchedulingPolicy, StepCosts};

/// Number of seeds for each case.
const SEEDS: u64 = 50;
const SLOTS: u16 = 5;
const DEVICE_SLOTS: u16 = 2;

fn owned(config: &ModelConfig, streams: bool, kv_format: KvFormat) -> DeviceMap {
    let homes = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let mut map = device_map(&Placing::GpuOnly, config, false, homes);
    if !streams {
        map.weights.iter_mut().flatten().for_each(|home| *home = MemoryId::VRAM);
    }
    with_owners(&DeviceMap { kv_format, ..map }, config)
}

/// Returns a model of two layers, one of which has a window of five positions.
fn windowed() -> ModelConfig {
    let all = llama().layers.kinds()[0].clone();
    let near = LayerKind { window: Some(5), ..all.clone() };
    ModelConfig { layers: Layers::from_kinds([near, all]), ..llama() }
}

/// Returns a policy chosen by the seed, with costs for which each shape is sometimes the best.
fn deciding(random: &mut ChaCha8Rng, seed: u64) -> HybridPolicy {
    let mut draw = |below: u32| random.next_u32() % below;
    let policy = SchedulingPolicy::ALL[seed as usize % SchedulingPolicy::ALL.len()];
    let pages_of_four = policy != SchedulingPolicy::GpuOnly && draw(2) == 0;
    let mut device = StepCostCurve { position_ps: draw(3) * 1000, ..StepCostCurve::NONE };
    device.points[0] = (1, 1000);
    device.points[1] = (64, 1000 + draw(3) * 4000);
    let costs = StepCosts {
        layers: 2,
        device,
        host_position_ps: draw(3) * 1_000_000,
        host_row_ps: draw(3) * 10_000_000,
        launch_us: draw(2) * 10,
        device_position_ps: draw(2) * 1_000_000,
        ..StepCosts::NONE
    };
    let limits = IterationLimits {
        rows: 0,
        page_positions: if pages_of_four { 4 } else { 15 },
        device_pages: DEVICE_SLOTS.into(),
        host_pages: if pages_of_four && draw(2) == 0 { 8 } else { 100 },
        patience: 1 + draw(20),
        deferred_rows: if draw(3) > 0 { DeferredRows::AnyLayer } else { DeferredRows::Never },
    };
    HybridPolicy { policy, limits, costs }
}

/// Serves the requests of a seed. Returns the number of instructions that ran, by program, and of
/// sequences that began again.
fn serve(
    config: &ModelConfig,
    map: &DeviceMap,
    dtype: Dtype,
    seed: u64,
    expected: &[workers::testing::Outcome],
) -> ([usize; 5], usize) {
    let owned = RunShape {
        serves: true,
        prefill_chunk: 40,
        device_slots: DEVICE_SLOTS,
        ..shape(1, SLOTS, 1, dtype)
    };
    let mut lanes = start(config, &owned, map, Variant::best());
    let table = lanes.table().clone();
    clear_table(&table, lanes.plan(), u32::MAX, &StepCostCurve::NONE);
    let first = deciding(&mut ChaCha8Rng::seed_from_u64(seed), seed);
    table.set_hybrid_policy(&first);
    let least = u32::from(first.policy == SchedulingPolicy::GpuOnly);
    let mut serve = ServingHarness::new(&mut lanes, config, seed);
    // The capacity of the device's caches grows and shrinks during the run.
    let found = serve.run(|table: &StepTable, random: &mut ChaCha8Rng| {
        let device_pages = least + random.next_u32() % (u32::from(DEVICE_SLOTS) + 1 - least);
        let limits = IterationLimits { device_pages, ..first.limits };
        table.set_hybrid_policy(&HybridPolicy { limits, ..first });
    });
    let (ran, restarts) = (serve.ran, serve.restarts);
    assert!(lanes.finish().iter().all(Result::is_ok));
    assert_eq!(tokens(&found), tokens(expected), "{} seed {seed} {first:?}", config.name);
    (ran, restarts)
}

#[test]
fn owned_sequences_have_the_bits_of_a_batch_job() {
    let mut all = ([0; 5], 0);
    for (config, dtype, kv_format, streams) in [
        (llama(), Dtype::Bf16, KvFormat::Plain, false),
        (opt(), Dtype::F32, KvFormat::Plain, true),
        (llama(), Dtype::Bf16, KvFormat::Four, true),
        (llama(), Dtype::Bf16, KvFormat::Eight, true),
        (windowed(), Dtype::F32, KvFormat::Plain, false),
    ] {
        let on_cpu = DeviceMap { kv_format, ..cpu_only(&config) };
        let expected = run_alone(&config, &shape(1, 1, 1, dtype), &on_cpu);
        let map = owned(&config, streams, kv_format);
        for seed in 0..SEEDS {
            let (ran, restarts) = serve(&config, &map, dtype, seed, &expected);
            all.0.iter_mut().zip(ran).for_each(|(all, ran)| *all += ran);
            all.1 += restarts;
        }
    }
    let ([gpu, pipelined, out, back, deferred], restarts) = all;
    assert!(gpu > 1000 && pipelined > 1000 && deferred > 1000, "each shape ran: {all:?}");
    assert!(out > 20 && back > 20, "caches moved in both directions: {all:?}");
    assert!(restarts > 20, "sequences were called off and begun again: {all:?}");
}

/// If the host's append is missing, a sequence of the host attends to positions that were never
/// written.
#[test]
fn what_is_not_appended_shows() {
    let programs = [ProgramId::STEP, ProgramId::PIPELINED];
    let is_append = |instruction: &Instruction| matches!(instruction, Instruction::Append(_));
    let first = deciding(&mut ChaCha8Rng::seed_from_u64(1), 1);
    let deciding = HybridPolicy { policy: SchedulingPolicy::FastDecode, ..first };
    assert!(!answers_without(&programs, LaneId::CPU_APPEND, is_append, deciding));
    assert!(answers_without(&programs, LaneId::CPU_APPEND, |_| false, deciding));
}

/// If a deferred row does not find the values that it left for its next layer, its token differs.
#[test]
fn what_a_row_leaves_for_its_next_layer_is_needed() {
    let mut device = StepCostCurve::NONE;
    device.points[0] = (1, 1000);
    device.points[1] = (64, 2000);
    let costs = StepCosts {
        layers: 2,
        device,
        device_position_ps: 10_000_000,
        host_position_ps: 200_000_000,
        ..StepCosts::NONE
    };
    let first = deciding(&mut ChaCha8Rng::seed_from_u64(1), 1);
    let limits = IterationLimits { deferred_rows: DeferredRows::AnyLayer, ..first.limits };
    let deciding = HybridPolicy { policy: SchedulingPolicy::Apex, limits, costs };
    for value in [Value::Hidden, Value::Query, Value::Key, Value::Value] {
        let leaves = |other: &Instruction| match other {
            Instruction::Copy(copy) => copy.moved == Moved::Deferred(value),
            _ => false,
        };
        assert!(!answers_without(&[ProgramId::ASYNC], LaneId::D2H, leaves, deciding), "{value:?}");
    }
    assert!(answers_without(&[ProgramId::ASYNC], LaneId::D2H, |_| false, deciding));
}

/// Returns true if the answers equal those of the batch job although a lane omits some
/// instructions, in each of several arrival orders of the requests.
fn answers_without(
    programs: &[ProgramId],
    lane: LaneId,
    is_left_out: impl Fn(&Instruction) -> bool,
    deciding: HybridPolicy,
) -> bool {
    let config = llama();
    let map = owned(&config, false, KvFormat::Plain);
    let shape = RunShape {
        serves: true,
        prefill_chunk: 40,
        device_slots: DEVICE_SLOTS,
        ..shape(1, SLOTS, 1, Dtype::F32)
    };
    let mut plan = compile(&config, &shape, &map).expect("the map compiles");
    for id in programs {
        let lists = plan.program_mut(*id).lanes.iter_mut();
        for list in lists.filter(|list| list.lane == lane) {
            list.instructions.retain(|other| !is_left_out(other));
        }
    }
    let expected =
        run_alone(&config, &crate::common::placed::shape(1, 1, 1, Dtype::F32), &cpu_only(&config));
    let source = model::source::dummy::DummySource::new(config.clone(), 5);
    (1..=8).all(|seed| {
        let options = crate::common::placed::options(1);
        let mut lanes = workers::testing::InProcess::start(plan.clone(), &source, options)
            .expect("lanes start");
        let table = lanes.table().clone();
        clear_table(&table, lanes.plan(), u32::MAX, &StepCostCurve::NONE);
        table.set_hybrid_policy(&deciding);
        // Caches leave the device and return.
        let found = ServingHarness::new(&mut lanes, &config, seed).run(|table, random| {
            let device_pages = random.next_u32() % (u32::from(DEVICE_SLOTS) + 1);
            let limits = IterationLimits { device_pages, ..deciding.limits };
            table.set_hybrid_policy(&HybridPolicy { limits, ..deciding });
        });
        assert!(lanes.finish().iter().all(Result::is_ok));
        tokens(&found) == tokens(&expected)
    })
}
