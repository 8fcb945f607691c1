//! Sequences of a serving run, in the slots of the step table.
//!
//! A slot circulates: the coordinator writes a sequence into a free slot and offers it; the sampler
//! takes it when it lists the next step, and returns it once the sequence has ended and no list
//! names the slot. Neither waits for the other. Between two steps the sampler alone decides which
//! rows are computed, by [`scheduler::next`]; before the first step of a group nothing else runs,
//! and the coordinator decides.
//!
//! The process of the sampler may be killed between any two of its stores, and the coordinator then
//! reads the table as it was left. For each token the sampler stores, in this order:
//!
//! 1. its log-probabilities and the token itself;
//! 2. `Generated`, with release: everything before it is complete for a thread that acquires the
//!    count;
//! 3. `Remaining` and `Finish`, in any order: neither describes tokens that `Generated` does not
//!    count;
//! 4. when it lists the next step, the state `Ended`, with release: `Finish` is final.
//!
//! Therefore, in a slot that is not `Ended`, only `Generated` and the tokens below it are reliable.
//! They determine if a sequence has all of its tokens, by the same rule that the sampler applies in
//! 3: the last one is an end-of-sequence token, or the requested number of tokens is reached. The
//! exception is `Finish::NotFinite`, which is stored instead of a token and is final at once.

use engine_api::request::{Pooling, Priority};
use program::ir::ProgramId;
use program::plan::Plan;
use program::step_table::{EndReason, Field, List, PoolingMode, SlotState, balance_units};
use scheduler::{Sequence, StepCostCurve};

use super::drafts::{Drafter, draft};
use super::group::{PlacedRequest, place_request};
use super::table::{StepTable, WorkItem};

/// Work list of a batch.
const STEP_LIST: List = List { program: ProgramId::STEP, stream: 0 };

/// A sequence that the sampler may take.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedSequence<'a> {
    /// The request and its slot, which must be free. If log-probabilities of its prompt are
    /// requested, the row before the first of these tokens must not have been computed.
    pub placed: &'a PlacedRequest,
    /// New tokens that the sequence already has, from slots that it occupied before.
    pub generated: &'a [u32],
    /// Number of positions in its caches.
    pub computed: u32,
    /// Number of positions for which caches are allocated.
    pub capacity: u32,
    /// Arrival number, which orders the sequences.
    pub arrival: u32,
}

/// Returns the state of a slot, which determines its owner.
pub fn slot_state(table: &StepTable, batch: usize, slot: usize) -> SlotState {
    match table.field(batch, slot, Field::State) {
        1 => SlotState::Offered,
        2 => SlotState::Running,
        3 => SlotState::Ended,
        _ => SlotState::Free,
    }
}

pub(super) fn set_state(table: &StepTable, batch: usize, slot: usize, state: SlotState) {
    table.set_field(batch, slot, Field::State, state as u32);
}

/// Writes a sequence into its slot and lets the sampler take it.
///
/// # Panics
/// Panics if the slot is not free.
pub fn offer_sequence(table: &StepTable, offer: &OfferedSequence<'_>) {
    let PlacedRequest { batch, slot, request } = offer.placed;
    assert_eq!(slot_state(table, *batch, *slot), SlotState::Free, "slot {slot} of batch {batch}");
    place_request(table, offer.placed);
    let answered = offer.generated.len() as u32;
    for (position, token) in offer.generated.iter().enumerate() {
        table.set_output(*batch, *slot, position, *token);
    }
    let set = |field, value| table.set_field(*batch, *slot, field, value);
    set(Field::Generated, answered);
    set(Field::Remaining, request.max_new - answered);
    set(Field::Computed, offer.computed);
    set(Field::Arrival, offer.arrival);
    set(Field::Background, u32::from(request.priority == Priority::Background));
    set(Field::PromptLogprobs, request.prompt_logprobs.into());
    let logprobs_from = request.prompt_logprobs_from.saturating_sub(1);
    let (pooling, logits_from) = match request.pooling {
        None => (PoolingMode::NoRows, logprobs_from),
        Some(Pooling::LastToken) => (PoolingMode::LastRow, logprobs_from),
        Some(Pooling::Mean) => (PoolingMode::AllRows, 0),
    };
    set(Field::Pooling, pooling as u32);
    set(Field::LogitsFrom, logits_from);
    set(Field::Capacity, offer.capacity);
    set(Field::Drafts, 0);
    set(Field::Acceptance, 0);
    set(Field::Verified, 0);
    set(Field::Accepted, 0);
    table.set_prediction(*batch, *slot, request.prediction.as_deref().unwrap_or_default());
    // SYNC POINT: slot state, released here once the sequence is written.
    set_state(table, *batch, *slot, SlotState::Offered);
}

/// Takes a slot back from a sequence that has ended.
///
/// # Panics
/// Panics if the sequence has not ended.
pub fn free_slot(table: &StepTable, batch: usize, slot: usize) {
    assert_eq!(slot_state(table, batch, slot), SlotState::Ended, "slot {slot} of batch {batch}");
    table.set_field(batch, slot, Field::PromptLen, 0);
    set_state(table, batch, slot, SlotState::Free);
}

/// Empties the table for a run that is about to begin: every slot is free and has as many positions
/// as any sequence can need.
pub fn clear_table(table: &StepTable, plan: &Plan, aim_us: u32, costs: &StepCostCurve) {
    table.clear();
    let capacities = vec![plan.shape.max_context; table.batch_size()];
    let bounds = balance_units(&capacities, table.kv_heads(None) as u32, plan.table.chunks);
    for batch in 0..table.batches() {
        table.set_extents(batch, &capacities);
        table.set_chunk_bounds(batch, &bounds);
    }
    table.set_step_budget(aim_us, costs);
}

/// Returns true if the sampler owns a slot of any batch.
pub fn has_running(table: &StepTable) -> bool {
    table.slots().any(|(batch, slot)| slot_state(table, batch, slot) == SlotState::Running)
}

/// Takes offered sequences, returns ended ones, and lists the rows of a batch's next step, with
/// drafts of `drafter`. `sequences` is scratch with a capacity for all slots.
pub fn list_step(
    table: &StepTable,
    batch: usize,
    sequences: &mut Vec<Sequence>,
    drafter: &mut dyn Drafter,
) {
    sequences.clear();
    for slot in 0..table.batch_size() {
        // SYNC POINT: slot state, acquired here: what is offered was written before.
        match slot_state(table, batch, slot) {
            SlotState::Offered => set_state(table, batch, slot, SlotState::Running),
            SlotState::Running => {}
            SlotState::Free | SlotState::Ended => continue,
        }
        if has_ended(table, batch, slot) {
            // SYNC POINT: slot state, released here: the sampler writes nothing of it any more.
            set_state(table, batch, slot, SlotState::Ended);
            continue;
        }
        sequences.push(sequence(table, batch, slot));
    }
    draft(table, batch, sequences, drafter);
    let mut listed = 0;
    scheduler::next_step(sequences, &table.step_budget(), |piece| {
        let (slot, first, rows) = (piece.slot as usize, piece.first as usize, piece.rows as usize);
        let (samples, logits_rows) = (piece.is_sampled, piece.logits_rows as usize);
        let drafts = piece.drafts as usize;
        let item = WorkItem { slot, first, rows, shared_row: None, samples, logits_rows, drafts };
        table.set_item(batch, STEP_LIST, listed, item);
        listed += 1;
    });
    table.set_item_count(batch, STEP_LIST, listed);
}

/// Returns a running sequence with its progress.
pub(super) fn sequence(table: &StepTable, batch: usize, slot: usize) -> Sequence {
    let field = |field| table.field(batch, slot, field);
    let (prompt, computed) = (field(Field::PromptLen), field(Field::Computed));
    let next_checkpoint = table.next_checkpoint(batch, slot, computed).unwrap_or(u32::MAX);
    let has_prompt_logits = needs_prompt_logits(table, batch, slot) && computed < prompt;
    let samples_token = draws_tokens(table, batch, slot);
    let num_tokens = prompt + field(Field::Generated) - u32::from(!samples_token);
    let (num_tokens, samples_token) = match table.selects_positions() {
        true => next_selection_end(prompt, computed, num_tokens, samples_token),
        false => (num_tokens, samples_token),
    };
    Sequence {
        slot: slot as u32,
        arrival: field(Field::Arrival),
        // A token from which no other is drawn is not computed.
        num_tokens,
        computed,
        capacity: field(Field::Capacity).min(next_checkpoint),
        logits_from: if has_prompt_logits { field(Field::LogitsFrom) } else { u32::MAX },
        samples_token,
        drafts: 0,
        acceptance: 0.0,
        is_background: field(Field::Background) != 0,
    }
}

/// Returns true if rows of a sequence's prompt pass the head from the position in `LogitsFrom` on.
pub(super) fn needs_prompt_logits(table: &StepTable, batch: usize, slot: usize) -> bool {
    table.field(batch, slot, Field::PromptLogprobs) > 0
        || table.pooling_mode(batch, slot) == PoolingMode::AllRows
}

/// Returns the end of the tokens of a sequence that can be computed next if new tokens select what
/// they attend to, and true if the next token is drawn from the last of them. Computes either the
/// prompt or a single new token, so that the row of a new token is the same as when a token was
/// first drawn from it, even if the sequence has returned its caches since.
fn next_selection_end(prompt: u32, computed: u32, known: u32, draws: bool) -> (u32, bool) {
    let end = if computed < prompt { prompt } else { computed + 1 };
    (known.min(end), draws && known <= end)
}

/// Returns true if tokens are drawn for a sequence, and it does not consist of its prompt alone.
pub(super) fn draws_tokens(table: &StepTable, batch: usize, slot: usize) -> bool {
    table.field(batch, slot, Field::Generated) + table.field(batch, slot, Field::Remaining) > 0
}

/// Returns true if a sequence has ended or is cancelled. Stores the finish reason of a cancelled
/// sequence, and of a completed one without new tokens.
pub(super) fn has_ended(table: &StepTable, batch: usize, slot: usize) -> bool {
    let field = |field| table.field(batch, slot, field);
    if !draws_tokens(table, batch, slot)
        && table.is_running(batch, slot)
        && field(Field::Computed) + 1 >= field(Field::PromptLen)
    {
        table.set_field(batch, slot, Field::Finish, EndReason::Length as u32);
    }
    let is_cancelled = table.field(batch, slot, Field::Cancel) != 0;
    if is_cancelled && table.is_running(batch, slot) {
        table.set_field(batch, slot, Field::Finish, EndReason::Stop as u32);
    }
    !table.is_running(batch, slot)
}
