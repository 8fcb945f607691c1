//! Construction of a group of sequences in the step table, before it is released, and placement of
//! new sequences in free slots.
//!
//! Used by the coordinator and by the in-process harness of the tests; after the release only
//! `Sample` writes the table.

pub use engine_api::request::{AnswerGrammar, GenerationRequest, Pooling};
use kernels::Sampling;
use program::ir::ProgramId;
use program::plan::Plan;
use program::step_table::{EndReason, Field, List, balance_units};
use shm::ProgramStage;

use crate::table::{StepTable, WorkItem};

/// A request and its place in the group.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedRequest {
    pub batch: usize,
    pub slot: usize,
    pub request: GenerationRequest,
}

/// Stages of a batch: its prompts once, then the newest tokens until all sequences have ended.
pub const BATCH_STAGES: [ProgramStage; 2] = [
    ProgramStage { program: ProgramId::PREFILL.0 as u32, steps: 1 },
    ProgramStage { program: ProgramId::DECODE.0 as u32, steps: u32::MAX },
];

/// Lists the work of the group in the table, before it is released. Returns the decode step after
/// which all its sequences have reached their length; 0 if prefill samples the last token.
pub fn list_work(table: &StepTable) -> u32 {
    for batch in 0..table.batches() {
        match table.prefill_chunk() {
            Some(rows) => list_chunks(table, batch, rows),
            None => list_whole(table, batch),
        }
    }
    let running = table.slots().filter(|&(batch, slot)| table.is_running(batch, slot));
    let steps = running.map(|(batch, slot)| {
        let made_by_prefill = u32::from(table.field(batch, slot, Field::Fresh) > 0);
        table.field(batch, slot, Field::Remaining) - made_by_prefill
    });
    steps.max().unwrap_or(0)
}

/// Returns the part of a slot's prompt that prefill computes: its last tokens.
fn prefill_item(table: &StepTable, batch: usize, slot: usize) -> Option<WorkItem> {
    let rows = table.field(batch, slot, Field::Fresh) as usize;
    let first = table.shared_prefix_len(batch, slot);
    (rows > 0).then_some(WorkItem {
        slot,
        first,
        rows,
        shared_row: None,
        samples: true,
        logits_rows: 1,
        drafts: 0,
    })
}

/// Lists whole prompts in each stream. A sequence that shares a prefix with an owner in its stream
/// attends to the owner's rows.
fn list_whole(table: &StepTable, batch: usize) {
    for stream in 0..table.streams() {
        let list = List::prefill(stream);
        table.set_item_count(batch, list, 0);
        let mut row0 = 0;
        let mut first_rows = Vec::new();
        for slot in table.stream_slots(stream) {
            let Some(mut item) = prefill_item(table, batch, slot) else { continue };
            first_rows.push((slot, row0));
            row0 += item.rows;
            if item.first > 0 {
                let owner = table.field(batch, slot, Field::Owner) as usize - 1;
                let found = first_rows.iter().find(|(slot, _)| *slot == owner);
                item.shared_row = Some(found.expect("an owner comes first in its stream").1);
            }
            table.push_item(batch, list, item);
        }
    }
}

/// Lists prompts consecutively, split every `max_rows` rows. A sequence that shares a prefix begins
/// in a later stream than the owner's rows, which it finds in its cache; if no stream is left for
/// that, it is computed whole.
fn list_chunks(table: &StepTable, batch: usize, max_rows: usize) {
    let streams = usize::from(table.streams());
    (0..table.streams()).for_each(|stream| table.set_item_count(batch, List::prefill(stream), 0));
    let new = |slot: &usize| table.field(batch, *slot, Field::Fresh) > 0;
    let slots: Vec<usize> = (0..table.batch_size()).filter(new).collect();
    let whole = |slot: &usize| table.field(batch, *slot, Field::PromptLen) as usize;
    let mut remaining: usize = slots.iter().map(whole).sum();
    let mut listed: Vec<(usize, WorkItem)> = Vec::new();
    let (mut stream, mut capacity) = (0, max_rows);
    for slot in slots {
        if computes_shared_prefix(table, batch, slot, &listed, stream) {
            // All remaining prompts fit the remaining streams even if computed whole.
            if remaining <= (streams - stream - 1) * max_rows {
                (stream, capacity) = (stream + 1, max_rows);
            } else {
                table.set_field(batch, slot, Field::Fresh, whole(&slot) as u32);
                table.set_field(batch, slot, Field::Owner, 0);
            }
        }
        remaining -= whole(&slot);
        let Some(item) = prefill_item(table, batch, slot) else { continue };
        let (mut first, end) = (item.first, item.first + item.rows);
        while first < end {
            if capacity == 0 {
                (stream, capacity) = (stream + 1, max_rows);
            }
            let rows = capacity.min(end - first);
            let samples = first + rows == end;
            let piece = WorkItem { first, rows, samples, logits_rows: samples.into(), ..item };
            table.push_item(batch, List::prefill(stream as u16), piece);
            listed.push((stream, piece));
            first += rows;
            capacity -= rows;
        }
    }
}

/// Returns true if a stream computes rows of a prefix that a sequence shares with its owner.
fn computes_shared_prefix(
    table: &StepTable,
    batch: usize,
    slot: usize,
    listed: &[(usize, WorkItem)],
    stream: usize,
) -> bool {
    let owner = table.field(batch, slot, Field::Owner) as usize;
    let shared = table.shared_prefix_len(batch, slot);
    let of_owner = listed.iter().filter(|(at, item)| *at == stream && item.slot + 1 == owner);
    of_owner.map(|(_, item)| item.first).any(|first| first < shared)
}

/// Clears the table and writes a group into it: prompts, limits, sampling parameters, consecutive
/// KV extents, and chunks of attention balanced by their bytes.
pub fn fill(table: &StepTable, plan: &Plan, group: &[PlacedRequest]) {
    fill_extents(table, plan, group, |request| request.prompt.len() as u32 + request.max_new);
}

/// Clears the table and writes a group into it with KV extents for the longest sequence, so that
/// any other sequence can follow in a slot; chunks of attention are then balanced by slots.
pub fn fill_even(table: &StepTable, plan: &Plan, group: &[PlacedRequest]) {
    fill_extents(table, plan, group, |_| plan.shape.max_context);
}

fn fill_extents(
    table: &StepTable,
    plan: &Plan,
    group: &[PlacedRequest],
    positions: impl Fn(&GenerationRequest) -> u32,
) {
    table.clear();
    let mut capacities = vec![vec![0; table.batch_size()]; table.batches()];
    for placed in group {
        place_request(table, placed);
        let PlacedRequest { batch, slot, request } = placed;
        capacities[*batch][*slot] = positions(request);
    }
    for (batch, capacities) in capacities.into_iter().enumerate() {
        table.set_extents(batch, &capacities);
        let kv_heads = table.kv_heads(None) as u32;
        table.set_chunk_bounds(batch, &balance_units(&capacities, kv_heads, plan.table.chunks));
    }
}

/// Turns a drained group into the next one: running sequences continue from the cache, and the
/// slots of all others become empty.
pub fn continue_group(table: &StepTable) {
    for batch in 0..table.batches() {
        (0..table.streams())
            .for_each(|stream| table.set_item_count(batch, List::prefill(stream), 0));
    }
    for (batch, slot) in table.slots() {
        table.set_field(batch, slot, Field::Fresh, 0);
        if !table.is_running(batch, slot) {
            table.set_field(batch, slot, Field::PromptLen, 0);
        }
    }
}

/// Writes a new sequence into its slot, which must have no running sequence and keeps its KV
/// extent.
pub fn place_request(table: &StepTable, placed: &PlacedRequest) {
    let PlacedRequest { batch, slot, request } = placed;
    let store = |field, value| table.set_field(*batch, *slot, field, value);
    table.set_prompt(*batch, *slot, &request.prompt);
    let prompt_len = request.prompt.len() as u32;
    store(Field::PromptLen, prompt_len);
    store(Field::Fresh, prompt_len);
    store(Field::Owner, 0);
    store(Field::Remaining, request.max_new);
    store(Field::Generated, 0);
    let Sampling { temperature, top_p, top_k, min_p, top_n_sigma, penalties, min_tokens } =
        request.sampling;
    table.set_token_rules(*batch, *slot, request.token_rules.as_deref());
    store(Field::Temperature, temperature.to_bits());
    store(Field::TopP, top_p.to_bits());
    store(Field::TopK, top_k);
    store(Field::MinP, min_p.to_bits());
    store(Field::TopNSigma, top_n_sigma.to_bits());
    store(Field::Repetition, penalties.repetition.to_bits());
    store(Field::Presence, penalties.presence.to_bits());
    store(Field::Frequency, penalties.frequency.to_bits());
    store(Field::MinTokens, min_tokens);
    store(Field::Grammar, request.grammar.number());
    store(Field::Logprobs, u32::from(request.logprobs));
    store(Field::SeedLow, request.seed as u32);
    store(Field::SeedHigh, (request.seed >> 32) as u32);
    store(Field::IdHashLow, request.id_hash as u32);
    store(Field::IdHashHigh, (request.id_hash >> 32) as u32);
    store(Field::IgnoreEos, u32::from(request.ignore_eos));
    store(Field::AnyLogits, u32::from(request.any_logits));
    store(Field::Finish, EndReason::Running as u32);
    store(Field::Cancel, 0);
}
