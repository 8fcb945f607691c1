//! Drafted tokens of a sequence, and how likely they are accepted.
//!
//! Drafts are written to the output after the sampled tokens, where the rows of a step read them
//! like any other token. Nothing else reads the output there.

use std::fmt::Debug;

use program::step_table::Field;
use scheduler::Sequence;

use super::predicted_answer::draft_predicted;
use super::table::StepTable;

/// Estimated probability that a draft of a sequence is accepted before any was.
const INITIAL_ACCEPTANCE: f32 = 0.5;
/// Estimated probability that a draft of a predicted answer is accepted before any was.
const PREDICTED_ACCEPTANCE: f32 = 0.8;
/// Weight of the newest draft in the estimated probability that drafts are accepted.
const ACCEPTANCE_WEIGHT: f32 = 0.1;

/// Source of drafted tokens.
pub trait Drafter: Debug + Send {
    /// Drafts tokens of the running sequences of a batch: up to `drafts` of each, which are written
    /// to its output after the sampled tokens. Sets `drafts` to their number.
    fn draft(&mut self, table: &StepTable, batch: usize, sequences: &mut [Sequence]);
}

/// Drafts tokens of the running sequences of a batch, if the table permits drafts: those of a
/// predicted answer, or else those of `drafter`.
pub(super) fn draft(
    table: &StepTable,
    batch: usize,
    sequences: &mut [Sequence],
    drafter: &mut dyn Drafter,
) {
    let max_drafts = table.max_drafts();
    if max_drafts == 0 {
        return;
    }
    let drafts_all = table.drafts_all();
    for sequence in sequences.iter_mut() {
        let slot = sequence.slot as usize;
        let is_decode = sequence.samples_token && sequence.num_tokens == sequence.computed + 1;
        // The last token that a sequence may have is not drafted: it is drawn in any case.
        let remaining = table.field(batch, slot, Field::Remaining).saturating_sub(1);
        let free = sequence.capacity.saturating_sub(sequence.num_tokens);
        sequence.drafts = if is_decode { max_drafts.min(remaining).min(free) } else { 0 };
        sequence.acceptance = acceptance(table, batch, slot);
        let predicted = draft_predicted(table, batch, sequence);
        table.set_field(batch, slot, Field::Drafts, predicted);
        if predicted > 0 || !drafts_all {
            sequence.drafts = 0;
        }
    }
    if drafts_all {
        drafter.draft(table, batch, sequences);
    }
    for sequence in sequences {
        let slot = sequence.slot as usize;
        let predicted = table.field(batch, slot, Field::Drafts);
        if predicted > 0 {
            sequence.drafts = predicted;
        } else {
            table.set_field(batch, slot, Field::Drafts, sequence.drafts);
        }
    }
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
    match known == 0.0 {
        true if table.field(batch, slot, Field::PredictionLen) > 0 => PREDICTED_ACCEPTANCE,
        true => INITIAL_ACCEPTANCE,
        false => known,
    }
}
