//! Rules of a sequence about single tokens: biases of their logits, tokens that end it, and the
//! limit on its reasoning.

use engine_api::token_rules::{ReasoningBudget, TokenRules};
use program::step_table::{Field, LOGIT_BIASES_MAX, STOP_TOKENS_MAX};

use super::StepTable;

const _: () = assert!(TokenRules::LOGIT_BIASES_MAX == LOGIT_BIASES_MAX);
const _: () = assert!(TokenRules::STOP_TOKENS_MAX == STOP_TOKENS_MAX);

impl StepTable {
    /// Writes the rules of a sequence.
    ///
    /// # Panics
    /// Panics if there are more than [`TokenRules`] permits.
    pub fn set_token_rules(&self, batch: usize, sequence: usize, rules: Option<&TokenRules>) {
        let biases = rules.map_or(&[][..], |rules| &rules.logit_bias);
        let stops = rules.map_or(&[][..], |rules| &rules.stop_token_ids);
        assert!(biases.len() <= LOGIT_BIASES_MAX && stops.len() <= STOP_TOKENS_MAX, "too many");
        let first = self.layout.logit_biases(batch, sequence);
        for (index, (token, bias)) in biases.iter().enumerate() {
            self.words.store(first + 2 * index, *token);
            self.words.store(first + 2 * index + 1, bias.to_bits());
        }
        let first = self.layout.stop_tokens(batch, sequence);
        for (index, token) in stops.iter().enumerate() {
            self.words.store(first + index, *token);
        }
        self.set_field(batch, sequence, Field::LogitBiases, biases.len() as u32);
        self.set_field(batch, sequence, Field::StopTokens, stops.len() as u32);
        let budget = rules.and_then(|rules| rules.reasoning_budget);
        let max = budget.map_or(0, |budget| budget.max_tokens.saturating_add(1));
        let open = budget.and_then(|budget| budget.open).map_or(0, |open| open + 1);
        self.set_field(batch, sequence, Field::ReasoningMax, max);
        self.set_field(batch, sequence, Field::ReasoningOpen, open);
        let close = budget.map_or(0, |budget| budget.close);
        self.set_field(batch, sequence, Field::ReasoningClose, close);
    }

    /// Returns the limit on a sequence's reasoning; `None` if there is none.
    pub fn reasoning_budget(&self, batch: usize, sequence: usize) -> Option<ReasoningBudget> {
        let field = |field| self.field(batch, sequence, field);
        Some(ReasoningBudget {
            max_tokens: field(Field::ReasoningMax).checked_sub(1)?,
            open: field(Field::ReasoningOpen).checked_sub(1),
            close: field(Field::ReasoningClose),
        })
    }

    /// Returns the tokens of a sequence that have a bias, with the bias.
    pub fn logit_biases(
        &self,
        batch: usize,
        sequence: usize,
    ) -> impl Iterator<Item = (u32, f32)> + '_ {
        let count = self.field(batch, sequence, Field::LogitBiases) as usize;
        let first = self.layout.logit_biases(batch, sequence);
        (0..count.min(LOGIT_BIASES_MAX)).map(move |index| {
            let word = |offset| self.words.load(first + 2 * index + offset);
            (word(0), f32::from_bits(word(1)))
        })
    }

    /// Returns the tokens that end a sequence in addition to EOS tokens.
    pub fn stop_tokens(&self, batch: usize, sequence: usize) -> impl Iterator<Item = u32> + '_ {
        let count = self.field(batch, sequence, Field::StopTokens) as usize;
        let first = self.layout.stop_tokens(batch, sequence);
        (0..count.min(STOP_TOKENS_MAX)).map(move |index| self.words.load(first + index))
    }
}
