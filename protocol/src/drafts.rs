//! Drafted tokens of a sequence, and how likely they are accepted.

use program::step_table::Field;
use scheduler::Sequence;

use super::prompt_lookup;
use super::table::StepTable;

/// Estimated probability that a draft of a sequence is accepted before any was.
const INITIAL_ACCEPTANCE: f32 = 0.5;
/// Weight of the newest draft in the estimated probability that drafts are accepted.
const ACCEPTANCE_WEIGHT: f32 = 0.1;

/// Drafts tokens of a sequence that has just sampled one, if the table permits drafts.
pub(super) fn draft(table: &StepTable, batch: usize, sequence: &mut Sequence) {
    let max_drafts = table.max_drafts();
    if max_drafts == 0 {
        return;
    }
    let slot = sequence.slot as usize;
    let is_decode = sequence.samples_token && sequence.num_tokens == sequence.computed + 1;
    // The last token that a sequence may have is not drafted: it is drawn in any case.
    let remaining = table.field(batch, slot, Field::Remaining).saturating_sub(1);
    let free = sequence.capacity.saturating_sub(sequence.num_tokens);
    let max_drafts = if is_decode { max_drafts.min(remaining).min(free) } else { 0 };
    let tokens = sequence.num_tokens as usize;
    sequence.drafts = prompt_lookup::draft(table, batch, slot, tokens, max_drafts as usize) as u32;
    sequence.acceptance = acceptance(table, batch, slot);
    table.set_field(batch, slot, Field::Drafts, sequence.drafts);
}

/// Updates the estimated probability that drafts of a sequence are accepted: its next token was
/// drafted, and the drawn one is equal if `accepted`.
pub fn record_draft(table: &StepTable, batch: usize, slot: usize, accepted: bool) {
    let known = acceptance(table, batch, slot);
    let target = if accepted { 1.0 } else { 0.0 };
    let acceptance = known + ACCEPTANCE_WEIGHT * (target - known);
    table.set_field(batch, slot, Field::Acceptance, acceptance.clamp(0.01, 0.99).to_bits());
}

/// Returns the estimated probability that a draft of a sequence is accepted.
fn acceptance(table: &StepTable, batch: usize, slot: usize) -> f32 {
    let known = f32::from_bits(table.field(batch, slot, Field::Acceptance));
    if known == 0.0 { INITIAL_ACCEPTANCE } else { known }
}
