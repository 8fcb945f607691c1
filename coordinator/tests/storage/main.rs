//! Tests of weights on several storages, each read by its own worker and lane: plans are compiled,
//! validated, simulated and run by real processes, with the tokens of the same plan without
//! storages, even if a storage is lost during the run.

mod common;
mod lost;
#[path = "../own_main.rs"]
mod own_main;

use std::collections::BTreeSet;
use std::process::ExitCode;

use common::{
    GROUPS, READ_TARGETS, ReadTarget, TestStagings, config, is_read_lane, maps, on_storages,
    routed_plans, run_groups, runs_all_cases, shape,
};
use model::config::Dtype;
use program::compile::compile;
use program::ir::{Instruction, Moved, Program, ProgramId};
use program::map::DeviceMap;
use program::plan::Plan;
use program::routing_counts::PinnedExpert;
use program::simulate::{Place, SimulationCosts, Span, simulate};
use program::topology::LaneSet;
use program::validate::{replay, validate};

const TESTS: [own_main::Test; 14] = [
    ("storages_change_no_token", storages_change_no_token),
    ("only_routed_experts_are_read", only_routed_experts_are_read),
    ("cached_experts_are_not_read_again", cached_experts_are_not_read_again),
    ("pinned_experts_are_there_from_the_start", pinned_experts_are_there_from_the_start),
    (
        "another_storage_goes_on_with_routed_experts",
        lost::another_storage_goes_on_with_routed_experts,
    ),
    (
        "another_storage_goes_on_for_one_that_fails",
        lost::another_storage_goes_on_for_one_that_fails,
    ),
    (
        "another_goes_on_reading_straight_to_the_device",
        lost::another_goes_on_reading_straight_to_the_device,
    ),
    ("another_storage_goes_on_for_a_killed_one", lost::another_storage_goes_on_for_a_killed_one),
    ("any_of_three_storages_can_be_the_last", lost::any_of_three_storages_can_be_the_last),
    ("without_any_storage_the_run_ends", lost::without_any_storage_the_run_ends),
    (
        "a_cut_file_or_a_removed_folder_costs_a_storage",
        lost::a_cut_file_or_a_removed_folder_costs_a_storage,
    ),
    ("another_staging_is_refused", lost::another_staging_is_refused),
    ("reads_precede_streamed_weights", reads_precede_streamed_weights),
    ("every_signal_of_a_storage_is_needed", every_signal_of_a_storage_is_needed),
];

fn main() -> ExitCode {
    own_main::main(&TESTS)
}

fn storages_change_no_token() {
    let dtypes = if runs_all_cases() { 2 } else { 1 };
    for dtype in [Dtype::Bf16, Dtype::F32].into_iter().take(dtypes) {
        for map in maps() {
            let plain = compile(&config(), &shape(dtype), &map).expect("compiles");
            let (expected, _, alone) = run_groups(plain, &[], GROUPS);
            assert_eq!(expected.len(), 8, "four sequences, twice");
            let distinct: BTreeSet<u32> = expected.iter().flatten().copied().collect();
            assert!(distinct.len() > 5, "tokens tell nothing: {distinct:?}");
            for to in READ_TARGETS {
                let plan = on_storages(&map, dtype, 2, to);
                let what = format!("{} in {dtype:?} to {to:?}", map.policy);
                let stagings = TestStagings::for_plan(&plan);
                let (tokens_read, spans, measured) = run_groups(plan.clone(), &stagings.at, GROUPS);
                assert_eq!(tokens_read, expected, "{what}");
                let workers = alone.kernel_variants.len() + 2;
                assert_eq!(measured.kernel_variants.len(), workers, "{what}");
                assert!(measured.lost_storages.is_empty(), "{:?}", measured.lost_storages);
                replay(&plan, &spans).expect("what ran is what was proved");
                read_in_every_step(&plan, &spans, &what);
            }
        }
    }
}

/// Number of portions in which the experts of a layer are read.
const PORTIONS: u64 = 4;

/// Tokens with a share of the experts read in each step equal those with all weights in memory, and
/// the bytes read are exactly those of the experts that rows were routed to.
fn only_routed_experts_are_read() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for (storages, batch_size) in [(1, 4), (2, 4), (3, 4), (2, 1)] {
            let (plain, plan) = routed_plans(dtype, storages, batch_size, 0);
            let what = format!("{storages} storages, {batch_size} sequences, {dtype:?}");
            let (expected, ..) = run_groups(plain, &[], 1);
            let stagings = TestStagings::for_plan(&plan);
            let (tokens_read, spans, measured) = run_groups(plan.clone(), &stagings.at, 1);
            assert_eq!(tokens_read, expected, "{what}");
            replay(&plan, &spans).expect("what ran is what was proved");
            let routing = measured.routing.expect("rows were routed");
            assert!(routing.experts_per_step < f64::from(routing.experts), "{what}");
            // An expert's matrix is a whole number of blocks.
            let matrix_bytes = 256 * 128 * dtype.size_bytes() as u64;
            let layers = plan.config.num_layers as u64;
            let experts = routing.experts_per_step * routing.counted_steps as f64;
            let decode_bytes = experts.round() as u64 * 3 * matrix_bytes;
            let prefill_bytes = layers * u64::from(routing.experts) * 3 * matrix_bytes;
            let read_bytes: u64 = measured.totals.read_bytes.values().sum();
            assert_eq!(read_bytes, prefill_bytes + decode_bytes, "{what}");
            // A request fetches an expert, or several that follow each other, unless it begins or
            // ends at the border between the shares of two drives, which each portion has.
            let steps = routing.counted_steps;
            let prefill_max = 3 * layers * (u64::from(routing.experts) + u64::from(storages) - 1);
            let borders = PORTIONS * (u64::from(storages) - 1);
            let decode_max = experts.round() as u64 + steps * borders;
            let requests: u64 = measured.totals.read_requests.values().sum();
            assert!(requests <= prefill_max + decode_max, "{what}: {requests}");
        }
    }
}

/// Caches from one expert to all change no token, and what is read is
/// exactly what the cache did not have.
fn cached_experts_are_not_read_again() {
    let (plain, _) = routed_plans(Dtype::Bf16, 2, 2, 0);
    let (expected, ..) = run_groups(plain, &[], GROUPS);
    for storages in [1, 2] {
        cached_experts_are_those_of_memory(storages, &expected);
    }
}

fn cached_experts_are_those_of_memory(storages: u32, expected: &[Vec<u32>]) {
    let mut read_bytes = Vec::new();
    // Two rows are routed to up to 4 of a layer's 8 experts; 5 layers have 40.
    for expert_slots in [1, 2, 3, 4, 5, 13, 40] {
        let (_, plan) = routed_plans(Dtype::Bf16, storages, 2, expert_slots);
        let stagings = TestStagings::for_plan(&plan);
        // The second group finds what the first one left.
        let (tokens_read, spans, measured) = run_groups(plan.clone(), &stagings.at, GROUPS);
        assert_eq!(tokens_read, expected, "{expert_slots} slots");
        replay(&plan, &spans).expect("what ran is what was proved");
        let routing = measured.routing.expect("rows were routed");
        let matrix_bytes = 256 * 128 * 2;
        let missing = routing.missing_per_step * routing.counted_steps as f64;
        let decode_bytes = missing.round() as u64 * 3 * matrix_bytes;
        let all_bytes: u64 = measured.totals.read_bytes.values().sum();
        let prefill_bytes = GROUPS as u64 * 5 * 8 * 3 * matrix_bytes;
        assert_eq!(all_bytes, prefill_bytes + decode_bytes, "{expert_slots} slots");
        // One request fetches an expert, or several with consecutive slots, and one a linear of an
        // expert in prefill. A second drive adds one where its share of a portion begins within an
        // expert.
        let requests: u64 = measured.totals.read_requests.values().sum();
        let prefill_requests = GROUPS as u64 * 5 * 8 * 3;
        let reads = routing.counted_steps * PORTIONS + GROUPS as u64 * 5 * 3;
        let cuts = reads * (u64::from(storages) - 1);
        let max = prefill_requests + missing.round() as u64 + cuts;
        assert!((prefill_requests + 1..=max).contains(&requests), "{requests} {max}");
        read_bytes.push(decode_bytes);
        if expert_slots == 40 {
            assert!(decode_bytes <= 40 * 3 * matrix_bytes, "each expert is read once");
            assert!(routing.missing_per_step < routing.experts_per_step);
        }
    }
    assert!(read_bytes.windows(2).all(|pair| pair[0] >= pair[1]), "{read_bytes:?}");
}

/// Experts that stay in the cache from the start change no token and are never read in a step, and
/// no cache reads fewer than the reported bound.
fn pinned_experts_are_there_from_the_start() {
    let (plain, _) = routed_plans(Dtype::Bf16, 2, 2, 0);
    let (expected, ..) = run_groups(plain, &[], GROUPS);
    let all = || (0..5).flat_map(|layer| (0..8).map(move |expert| PinnedExpert { layer, expert }));
    for (storages, expert_slots, pinned) in [
        (1, 40, all().collect::<Vec<_>>()),
        (2, 40, all().collect()),
        (2, 6, all().step_by(9).collect()),
        (2, 5, all().step_by(8).collect()),
    ] {
        let (_, plan) = routed_plans(Dtype::Bf16, storages, 2, expert_slots);
        let map = DeviceMap { pinned_experts: pinned.clone(), ..plan.map.clone() };
        let plan = compile(&plan.config, &plan.shape, &map).expect("compiles");
        validate(&plan).expect("it is proved");
        let what = format!("{storages} storages, {} of {expert_slots} pinned", pinned.len());
        let stagings = TestStagings::for_plan(&plan);
        let (tokens_read, spans, measured) = run_groups(plan.clone(), &stagings.at, GROUPS);
        assert_eq!(tokens_read, expected, "{what}");
        replay(&plan, &spans).expect("what ran is what was proved");
        let routing = measured.routing.expect("rows were routed");
        let cache = routing.cache.expect("it has a cache");
        let steps = routing.counted_steps as f64;
        assert_eq!(cache.uses, (routing.experts_per_step * steps).round() as u64, "{what}");
        assert_eq!(cache.missing, (routing.missing_per_step * steps).round() as u64, "{what}");
        let record_bytes = 3 * 256 * 128 * 2;
        assert_eq!(cache.missing_bytes, cache.missing * record_bytes, "{what}");
        assert_eq!(cache.min_missing_bytes, cache.min_missing * record_bytes, "{what}");
        assert!(cache.min_missing <= cache.missing, "{what}: {cache:?}");
        assert_eq!(pinned.len() == 40, cache.missing == 0, "{what}: {cache:?}");
        // Decode reads what the log says was missing, and nothing else.
        let prefill_bytes = GROUPS as u64 * 5 * 8 * record_bytes;
        let read_bytes: u64 = measured.totals.read_bytes.values().sum();
        assert_eq!(read_bytes, prefill_bytes + cache.missing_bytes, "{what}");
        let rows: u64 = routing.rows_of_experts.layers.iter().flatten().sum();
        assert!(rows >= cache.uses, "{what}");
    }
}

fn read_in_every_step(plan: &Plan, spans: &[Span], what: &str) {
    for lane in plan.lanes().into_iter().filter(|lane| is_read_lane(plan, *lane)) {
        let of_lane = spans.iter().filter(|span| span.lane == lane);
        let steps: BTreeSet<(bool, u32)> =
            of_lane.map(|span| (span.program == ProgramId::DECODE, span.step)).collect();
        // Prefill, and the eleven decode steps of the longest answer.
        assert_eq!(steps.len(), 12, "{what} {}", plan.lane_name(lane));
    }
}

/// Costs in which reads take longer than anything else, so that an instruction that does not wait
/// for its read runs too early.
struct SlowReads;

impl SimulationCosts for SlowReads {
    fn work_ns(&self, _: Place, instruction: &Instruction, _: u32) -> f64 {
        if matches!(instruction, Instruction::Read(_)) { 1000.0 } else { 10.0 }
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}

fn reads_precede_streamed_weights() {
    for map in maps() {
        let plan = on_storages(&map, Dtype::Bf16, 2, ReadTarget::Host);
        for program in &plan.programs {
            let timeline = simulate(program, &SlowReads, 3).expect("it runs to its end");
            let at = |span: &Span| instruction(program, span);
            let mut streamed = 0;
            for span in &timeline.spans {
                let Instruction::Copy(copy) = at(span) else { continue };
                let Moved::Weights(op) = copy.moved else { continue };
                let read = timeline.spans.iter().find(|other| {
                    let Instruction::Read(read) = at(other) else { return false };
                    other.step == span.step && (read.op, read.at) == (op, copy.at)
                });
                let read = read.expect("what is streamed was read in the step");
                assert!(read.end_ns <= span.start_ns, "{read:?} {span:?}");
                streamed += 1;
            }
            assert_eq!(streamed > 0, map.uses_gpu(), "{} {:?}", map.policy, program.id);
            let reads = timeline.spans.iter().filter(|span| is_read_lane(&plan, span.lane)).count();
            assert!(reads > 3 * config().num_layers, "{}: {reads}", map.policy);
        }
    }
}

fn instruction<'a>(program: &'a Program, span: &Span) -> &'a Instruction {
    let list = program.lane(span.lane).expect("a lane with work");
    &list.instructions[span.instruction as usize]
}

fn every_signal_of_a_storage_is_needed() {
    for (map, to) in maps().into_iter().flat_map(|map| READ_TARGETS.map(|to| (map.clone(), to))) {
        let plan = on_storages(&map, Dtype::Bf16, 2, to);
        let mut by_lane = BTreeSet::new();
        for id in [ProgramId::PREFILL, ProgramId::DECODE] {
            let program = plan.program(id);
            for (place, list) in program.lanes.iter().enumerate() {
                if !is_read_lane(&plan, list.lane) {
                    continue;
                }
                let signals = list.instructions.iter().enumerate();
                for (index, _) in
                    signals.filter(|(_, instruction)| **instruction == Instruction::Signal)
                {
                    let mut changed = plan.clone();
                    let program = changed.program_mut(id);
                    // The signal is removed as if it had never been planned.
                    program.lanes[place].instructions.remove(index);
                    program.lanes[place].signals_per_step -= 1;
                    let name = plan.lane_name(list.lane);
                    assert!(validate(&changed).is_err(), "{} {id:?} {name} {index}", map.policy);
                    by_lane.insert((id, list.lane));
                }
            }
        }
        assert_eq!(by_lane.len(), 4, "{}: both lanes signal in both programs", map.policy);
    }
}
