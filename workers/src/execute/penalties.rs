//! Changes to the logits of a sequence's next token: the biases of its request, and what depends on
//! its earlier tokens.

use kernels::{LogitChange, Penalties};
use program::step_table::{Field, LOGIT_BIASES_MAX, STOP_TOKENS_MAX};
use protocol::table::StepTable;

/// Changes of the rows of a batch, allocated once.
#[derive(Debug)]
pub(super) struct Changes {
    /// Changes of all rows, consecutively.
    pub(super) all: Vec<LogitChange>,
    /// Number of occurrences of each token in a sequence's answer; all 0 between two sequences.
    occurrences: Vec<u32>,
    /// Distinct tokens of a sequence.
    tokens: Vec<u32>,
}

/// The token of a sequence after its first `generated` new ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct NextToken {
    pub(super) batch: usize,
    pub(super) slot: usize,
    pub(super) generated: u32,
}

/// Bias of a token that has to follow, beyond any difference between logits.
const FORCING_BIAS: f32 = 1e30;

/// Flag among the occurrences of a token: it occurs in the prompt.
const IN_PROMPT: u32 = 1 << 31;

impl Changes {
    /// Allocates for `rows` rows of `vocab` logits, of sequences of at most `max_context` tokens.
    pub(super) fn new(rows: usize, vocab: usize, max_context: usize, eos: usize) -> Changes {
        let distinct = vocab.min(max_context);
        let of_row = LOGIT_BIASES_MAX + distinct + eos + STOP_TOKENS_MAX + 1;
        Changes {
            all: Vec::with_capacity(rows * of_row),
            occurrences: vec![0; vocab],
            tokens: Vec::with_capacity(distinct),
        }
    }

    /// Removes the changes of the previous step.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds the changes of a token and returns their range. Tokens in `eos` end an answer.
    pub(super) fn add(&mut self, table: &StepTable, next: NextToken, eos: &[u32]) -> (u32, u32) {
        let NextToken { batch, slot, generated } = next;
        let from = self.all.len() as u32;
        let field = |field| table.field(batch, slot, field);
        let penalties = penalties_of(field);
        let is_too_short = generated < field(Field::MinTokens);
        let biases = table.logit_biases(batch, slot);
        self.all.extend(biases.map(|(token, bias)| LogitChange::bias(token, bias)));
        if penalties != Penalties::NONE {
            self.count(table, next, penalties.repetition != 1.0);
            for token in self.tokens.drain(..) {
                let times = std::mem::take(&mut self.occurrences[token as usize]) & !IN_PROMPT;
                self.all.push(penalties.change(token, times));
            }
        }
        if is_too_short {
            let ends = eos.iter().copied().chain(table.stop_tokens(batch, slot));
            self.all.extend(ends.map(LogitChange::exclude));
        }
        let marker = forced_marker(table, next);
        self.all.extend(marker.map(|marker| LogitChange::bias(marker, FORCING_BIAS)));
        (from, self.all.len() as u32)
    }

    /// Returns true if the next token may have changes.
    pub(super) fn may_change(table: &StepTable, next: NextToken) -> bool {
        let NextToken { batch, slot, generated } = next;
        let field = |field| table.field(batch, slot, field);
        generated < field(Field::MinTokens)
            || penalties_of(field) != Penalties::NONE
            || table.logit_biases(batch, slot).next().is_some()
            || forced_marker(table, next).is_some()
    }

    /// Counts the new tokens before another one, and those of the prompt if `with_prompt`.
    fn count(&mut self, table: &StepTable, next: NextToken, with_prompt: bool) {
        let NextToken { batch, slot, generated } = next;
        let Changes { occurrences, tokens, .. } = self;
        let prompt_len = table.field(batch, slot, Field::PromptLen) as usize;
        let mut note = |token: u32, update: fn(u32) -> u32| {
            // A token outside the model's vocabulary has no logit.
            let Some(occurrences) = occurrences.get_mut(token as usize) else { return };
            if *occurrences == 0 {
                tokens.push(token);
            }
            *occurrences = update(*occurrences);
        };
        for position in 0..if with_prompt { prompt_len } else { 0 } {
            note(table.prompt_token(batch, slot, position), |said| said | IN_PROMPT);
        }
        for place in 0..generated as usize {
            note(table.output(batch, slot, place), |said| said + 1);
        }
    }
}

/// Returns the closing marker of the reasoning if it has to follow: the reasoning has as many
/// tokens as it may have. It depends on the tokens of the answer alone.
fn forced_marker(table: &StepTable, next: NextToken) -> Option<u32> {
    let NextToken { batch, slot, generated } = next;
    let budget = table.reasoning_budget(batch, slot)?;
    if generated < budget.max_tokens {
        return None;
    }
    let mut tokens = (0..generated as usize).map(|place| table.output(batch, slot, place));
    if let Some(open) = budget.open {
        tokens.find(|token| *token == open)?;
    }
    let mut count = 0;
    for token in tokens {
        if token == budget.close {
            return None;
        }
        count += 1;
    }
    (count >= budget.max_tokens).then_some(budget.close)
}

fn penalties_of(field: impl Fn(Field) -> u32) -> Penalties {
    let float = |of| f32::from_bits(field(of));
    let repetition = float(Field::Repetition);
    Penalties {
        repetition: if repetition == 0.0 { 1.0 } else { repetition },
        presence: float(Field::Presence),
        frequency: float(Field::Frequency),
    }
}
