//! In-process runs of compiled maps, for the tests that compare their bits.

use std::sync::Arc;

use std::time::Duration;

use kernels::{Penalties, PoolOptions, Sampling, Variant};
use model::config::{Dtype, ModelConfig};
use model::source::dummy::DummySource;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::Split;
use program::compile::compile;
use program::ir::ProgramId;
use program::map::{Chunking, DeviceMap};
use program::plan::RunShape;
use program::simulate::Span;
use program::step_table::{EndReason, Field};
use program::topology::MemoryId;
use protocol::prefix_sharing::share_prefixes;
use workers::setup::LaneOptions;
use workers::testing::{
    GenerationRequest, InProcess, Outcome, PlacedRequest, continue_group, fill, fill_even,
    place_request,
};

pub fn shape(batches: u16, batch_size: u16, micro_sequences: u16, dtype: Dtype) -> RunShape {
    RunShape {
        batches,
        batch_size,
        max_prompt: 9,
        shared_prompt: 0,
        max_context: 15,
        max_new: 6,
        logprobs: 4,
        micro_sequences,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype,
    }
}

/// Returns requests with ragged prompts and lengths in all slots but one, so that a batch is not
/// full.
pub fn group(shape: &RunShape, vocab: usize) -> Vec<PlacedRequest> {
    let mut placed = Vec::new();
    for batch in 0..usize::from(shape.batches) {
        for slot in 0..usize::from(shape.batch_size) {
            let index = batch * usize::from(shape.batch_size) + slot;
            if index == 2 {
                continue;
            }
            let length = 1 + (index * 5) % shape.max_prompt as usize;
            let prompt = (0..length).map(|i| ((index * 17 + i * 7 + 3) % vocab) as u32).collect();
            let mut request = GenerationRequest::greedy(prompt, 1 + (index as u32 * 2 + 5) % 6);
            if index % 3 == 1 {
                request.sampling = random_sampling();
                request.seed = 11;
                request.id_hash = index as u64;
            }
            request.logprobs = index as u16 % 5;
            placed.push(PlacedRequest { batch, slot, request });
        }
    }
    placed
}

pub fn options(threads: usize) -> LaneOptions {
    LaneOptions {
        variant: Variant::best(),
        pool: PoolOptions::unpinned(threads),
        link_bytes_per_s: None,
        wait_timeout: Duration::from_secs(60),
        grammars: None,
        routes_randomly: false,
        select_text: (0..48).collect(),
        drafter: None,
    }
}

/// Checks the trace of one group against the plan: lane order, waits, and no conflicts in time.
fn replay(lanes: &mut InProcess) {
    let records = lanes.drain_trace();
    let spans: Vec<Span> = records
        .iter()
        .map(|(lane, record)| Span {
            lane: *lane,
            program: ProgramId(record.program as u8),
            step: record.step,
            instruction: record.instruction,
            start_ns: record.start_ns,
            end_ns: record.end_ns,
        })
        .collect();
    if let Err(error) = program::validate::replay(lanes.plan(), &spans) {
        panic!("{error}");
    }
}

/// Runs the same sequences, one more of which begins after every decode step while the others
/// continue.
fn run_in_turn(lanes: &mut InProcess, group: &[PlacedRequest]) -> Vec<Outcome> {
    let table = lanes.table().clone();
    let mut outcomes: Vec<Option<Outcome>> = vec![None; group.len()];
    fill_even(&table, lanes.plan(), group);
    table.slots().for_each(|(batch, slot)| table.set_field(batch, slot, Field::PromptLen, 0));
    let mut waiting = group.iter();
    while outcomes.iter().any(Option::is_none) {
        continue_group(&table);
        if let Some(next) = waiting.next() {
            place_request(&table, next);
        }
        let running = table.slots().filter(|(batch, slot)| table.is_running(*batch, *slot)).count();
        table.set_early_end_running(running as u32);
        lanes.release().expect("the lanes drain");
        replay(lanes);
        for (placed, outcome) in group.iter().zip(&mut outcomes) {
            let began = table.field(placed.batch, placed.slot, Field::PromptLen) > 0;
            if began && outcome.is_none() && !table.is_running(placed.batch, placed.slot) {
                *outcome = Some(Outcome::read(&table, placed));
            }
        }
    }
    outcomes.into_iter().flatten().collect()
}

/// Runs prompts with a common prefix, each computed whole and then with the prefix shared.
fn run_identical(lanes: &mut InProcess, group: &[PlacedRequest]) {
    let mut group = group.to_vec();
    for (index, placed) in group.iter_mut().enumerate() {
        let prompt = Arc::make_mut(&mut placed.request.prompt);
        prompt
            .iter_mut()
            .zip([3, 7, 5, 1])
            .for_each(|(token, same)| *token = same + index as u32 / 5);
    }
    let table = lanes.table().clone();
    let whole = lanes.run_group(&group);
    replay(lanes);
    fill(&table, lanes.plan(), &group);
    share_prefixes(&table, 1);
    let shared: usize =
        table.slots().map(|(batch, slot)| table.shared_prefix_len(batch, slot)).sum();
    let shares = table.can_share_prefixes();
    assert!(shared > 0 || table.streams() > 1 || !shares, "some of a stream begin alike");
    assert!(shared == 0 || shares, "nobody begins behind another one's state");
    lanes.release().expect("the lanes drain");
    replay(lanes);
    let found: Vec<_> = group.iter().map(|placed| Outcome::read(&table, placed)).collect();
    assert_eq!(found, whole, "{shared} tokens of prompts were shared");
}

/// Starts the lanes of a map, which must compile and be valid.
pub fn start(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    variant: Variant,
) -> InProcess {
    let plan = compile(config, shape, map).expect("the map compiles");
    if let Err(error) = program::validate::validate(&plan) {
        panic!("{error}");
    }
    let source = DummySource::new(config.clone(), 5);
    let options = LaneOptions { variant, ..options(1) };
    InProcess::start(plan, &source, options).expect("the lanes start")
}

/// Returns the results of a group, which must be equal when it is run at once, a second time, one
/// sequence after the other, and with shared prefixes.
pub fn outcomes(lanes: &mut InProcess, full: &[PlacedRequest]) -> Vec<Outcome> {
    let outcomes = lanes.run_group(full);
    replay(lanes);
    assert_eq!(lanes.run_group(full), outcomes, "a second group in the same lanes");
    replay(lanes);
    assert_eq!(run_in_turn(lanes, full), outcomes, "one begins after the other");
    for (placed, outcome) in full.iter().zip(&outcomes) {
        assert_eq!(outcome.tokens.len(), placed.request.max_new as usize);
        assert_eq!(outcome.finish, EndReason::Length as u32);
        let wanted = usize::from(placed.request.logprobs);
        assert_eq!(outcome.logprobs.len(), wanted * outcome.tokens.len());
        let own = outcome.logprobs.iter().step_by(wanted.max(1)).map(|found| found.0);
        assert!(wanted == 0 || own.eq(outcome.tokens.iter().copied()), "first a token's own");
    }
    run_identical(lanes, full);
    outcomes
}

/// Returns the results of a group, and the logits of prefill and decode of shortened groups.
pub fn run(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> (Vec<Outcome>, Vec<f32>) {
    let mut lanes = start(config, shape, map, Variant::best());
    let full = group(shape, config.vocab_size);
    let outcomes = outcomes(&mut lanes, &full);
    let mut logits = Vec::new();
    for (max_new, program) in [(1, ProgramId::PREFILL), (4, ProgramId::DECODE)] {
        let mut same = full.clone();
        same.iter_mut().for_each(|placed| placed.request.max_new = max_new);
        lanes.run_group(&same);
        let sequences = same.iter().filter(|placed| placed.batch == 0).count();
        let rows = match program {
            ProgramId::PREFILL => {
                let stream = usize::from(shape.micro_sequences);
                same.iter().filter(|placed| placed.batch == 0 && placed.slot < stream).count()
            }
            _ => sequences,
        };
        logits.extend(lanes.logits(program, 0, 0, rows));
    }
    assert!(lanes.finish().iter().all(Result::is_ok));
    (outcomes, logits)
}

/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

/// Returns the intervals of `ops` operations for the GPU: all of them, or as a sample each
/// operation alone, all from one on, and a fifth of the others.
pub fn intervals(ops: usize) -> Vec<Split> {
    let all = (0..ops).flat_map(|start| (start + 1..=ops).map(move |end| Split { start, end }));
    let is_sampled = |split: &Split| {
        let Split { start, end } = *split;
        end == start + 1 || end == ops || (2 * start + end) % 5 == 0
    };
    all.filter(|split| runs_all_cases() || is_sampled(split)).collect()
}

pub fn two_split(config: &ModelConfig, split: Split, chunking: Option<Chunking>) -> DeviceMap {
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM };
    device_map(&Policy::TwoSplit { split, chunking }, config, true, homes)
}

pub fn cpu_only(config: &ModelConfig) -> DeviceMap {
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    device_map(&Policy::CpuOnly, config, true, homes)
}

/// Returns sampling parameters that depend on all earlier tokens and apply every filter.
pub fn random_sampling() -> Sampling {
    let penalties = Penalties { repetition: 1.2, presence: 0.3, frequency: 0.2 };
    let (temperature, top_p, top_k, min_p) = (0.9, 0.95, 50, 0.01);
    Sampling { temperature, top_p, top_k, min_p, penalties, ..Sampling::GREEDY }
}
