//! Drafted tokens of a sequence, and how likely they are accepted.
//!
//! Drafts are written to the output after the sampled tokens, where the rows of a step read them
//! like any other token. Nothing else reads the output there.

use std::fmt::Debug;

use program::step_table::Field;
use scheduler::{DraftAcceptance, Sequence};

use super::predicted_answer::draft_predicted;
use super::table::StepTable;

/// Estimated probability that a draft of a sequence is accepted before any was.
const INITIAL_ACCEPTANCE: f32 = 0.5;
/// Estimated probability that a draft of a predicted answer is accepted before any was.
const PREDICTED_ACCEPTANCE: f32 = 0.8;

/// Hidden states of a sequence after a step: the residual stream after the last layer.
#[derive(Debug, Clone, Copy)]
pub struct HiddenRows<'a> {
    pub slot: usize,
    /// Position of the first row.
    pub first: usize,
    /// `[rows, hidden_size]`, without rows of refused drafts.
    pub rows: &'a [f32],
    /// True if a token was drawn from the last row.
    pub is_drawn: bool,
}

/// Source of drafted tokens.
pub trait Drafter: Debug + Send {
    /// Drafts tokens of the running sequences of a batch: up to `drafts` of each, which are written
    /// to its output after the sampled tokens. Sets `drafts` to their number.
    fn draft(&mut self, table: &StepTable, batch: usize, sequences: &mut [Sequence]);

    /// Takes hidden states of a sequence that has not ended, once their step is recorded. Called
    /// in runs whose samples read them, before [`Drafter::draft`].
    fn take_hidden(&mut self, _table: &StepTable, _batch: usize, _hidden: HiddenRows<'_>) {}
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
        sequence.acceptance = acceptance(table, batch, slot).share;
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

/// Updates the estimated probability that drafts of a sequence are accepted by those that a step
/// has compared with drawn tokens: `right` ones and, if `is_refused`, a wrong one.
pub fn record_drafts(table: &StepTable, batch: usize, slot: usize, right: u32, is_refused: bool) {
    let mut known = acceptance(table, batch, slot);
    known.record_step(right, is_refused);
    set_acceptance(table, batch, slot, known);
}

/// Sets the estimated probability that drafts of a sequence are accepted.
pub fn set_acceptance(table: &StepTable, batch: usize, slot: usize, known: DraftAcceptance) {
    let set = |field, value: f32| table.set_field(batch, slot, field, value.to_bits());
    set(Field::Acceptance, known.share);
    set(Field::AcceptanceWeight, known.weight);
    set(Field::RecentAcceptance, known.recent);
}

/// Returns the estimated probability that a draft of a sequence is accepted.
fn acceptance(table: &StepTable, batch: usize, slot: usize) -> DraftAcceptance {
    let known = |field| f32::from_bits(table.field(batch, slot, field));
    let share = known(Field::Acceptance);
    if share > 0.0 {
        let (weight, recent) = (known(Field::AcceptanceWeight), known(Field::RecentAcceptance));
        return DraftAcceptance { share, weight, recent };
    }
    let is_predicted = table.field(batch, slot, Field::PredictionLen) > 0;
    DraftAcceptance::new(if is_predicted { PREDICTED_ACCEPTANCE } else { INITIAL_ACCEPTANCE })
}
