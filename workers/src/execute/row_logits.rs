//! Rows of logits for a sampler, all values or the most likely tokens where these suffice, and the
//! parameters with which tokens are drawn from them.

use kernels::{Penalties, SampleDraw, Sampling, random_unit};
use program::ir::{At, ProgramId};
use program::step_table::Field;
use protocol::table::StepTable;

use super::penalties::{Changes, NextToken};
use crate::work_items::logits_rows;

/// Logits of rows, or the most likely tokens alone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowLogits<'a> {
    /// `[rows, vocab]`.
    Values(&'a [f32]),
    /// The most likely token of each row, or [`kernels::NO_TOKEN`] if its logit is not finite.
    /// Sufficient unless [`needs_logits`].
    Greedy(&'a [u32]),
}

/// Returns true if anything but the most likely token of each row of an instruction's stream is
/// needed: a token is drawn or has rules, or log-probabilities are requested.
pub(crate) fn needs_logits(table: &StepTable, program: ProgramId, at: At) -> bool {
    let batch = usize::from(at.batch);
    logits_rows(table, program, at).any(|found| {
        let slot = found.item.slot;
        let field = |field| table.field(batch, slot, field);
        let Some(drafts) = found.drawn else {
            return field(Field::PromptLogprobs) > 0;
        };
        let generated = field(Field::Generated) + drafts as u32;
        f32::from_bits(field(Field::Temperature)) != 0.0
            || field(Field::Grammar) > 0
            || field(Field::Logprobs) > 0
            || Changes::may_change(table, NextToken { batch, slot, generated })
    })
}

/// Returns the parameters with which a sequence's new token number `generated` is drawn, counted
/// from 0.
pub(super) fn draw_parameters(
    table: &StepTable,
    batch: usize,
    sequence: usize,
    generated: u32,
) -> SampleDraw {
    let float = |field| f32::from_bits(table.field(batch, sequence, field));
    let sampling = Sampling {
        temperature: float(Field::Temperature),
        top_p: float(Field::TopP),
        top_k: table.field(batch, sequence, Field::TopK),
        min_p: float(Field::MinP),
        top_n_sigma: float(Field::TopNSigma),
        // Penalties and rules are passed as changes of individual tokens.
        penalties: Penalties::NONE,
        min_tokens: 0,
    };
    let masked = table.field(batch, sequence, Field::Grammar) > 0;
    if sampling.temperature == 0.0 {
        return SampleDraw { masked, ..SampleDraw::GREEDY };
    }
    let seed = table.field_u64(batch, sequence, Field::SeedLow, Field::SeedHigh);
    let id = table.field_u64(batch, sequence, Field::IdHashLow, Field::IdHashHigh);
    let random = random_unit(seed, id, generated);
    SampleDraw { sampling, random, masked, ..SampleDraw::GREEDY }
}
