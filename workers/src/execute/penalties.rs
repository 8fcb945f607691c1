//! What the tokens of a sequence change of the logits of its next one.

use kernels::{Change, Penalties};
use program::step_table::Field;

use crate::shared::table::StepTable;

/// Changes of the rows of a batch.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Of all rows, one behind the other.
    pub(super) all: Vec<Change>,
    /// How often a sequence's answer has said each token; 0 everywhere between two sequences.
    said: Vec<u32>,
    /// Tokens of a sequence, each once.
    tokens: Vec<u32>,
}

/// In `said`: the prompt has the token.
const PROMPTED: u32 = 1 << 31;

impl Changes {
    /// Forgets those of the step before.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Adds those of a sequence, of tokens below `vocab`, of which `eos` end an answer; from where
    /// and to where they are.
    pub(super) fn add(
        &mut self,
        table: &StepTable,
        (batch, slot): (usize, usize),
        vocab: usize,
        eos: &[u32],
    ) -> (u32, u32) {
        let from = self.all.len() as u32;
        let field = |field| table.field(batch, slot, field);
        let penalties = penalties_of(field);
        let generated = field(Field::Generated);
        let is_too_short = generated < field(Field::MinTokens);
        if penalties != Penalties::NONE {
            self.count(table, (batch, slot), vocab, penalties.repetition != 1.0);
            for token in self.tokens.drain(..) {
                let said = std::mem::take(&mut self.said[token as usize]) & !PROMPTED;
                if !(is_too_short && eos.contains(&token)) {
                    self.all.push(penalties.change(token, said));
                }
            }
        }
        if is_too_short {
            self.all.extend(eos.iter().map(|end| Change::never(*end)));
        }
        (from, self.all.len() as u32)
    }

    /// Counts the tokens of a sequence, with those of its prompt where they matter.
    fn count(
        &mut self,
        table: &StepTable,
        (batch, slot): (usize, usize),
        vocab: usize,
        with_prompt: bool,
    ) {
        self.said.resize(vocab, 0);
        let Changes { said, tokens, .. } = self;
        let prompt_len = table.field(batch, slot, Field::PromptLen) as usize;
        let generated = table.field(batch, slot, Field::Generated) as usize;
        let mut note = |token: u32, how: fn(u32) -> u32| {
            // What is no token of the model has no logit.
            let Some(said) = said.get_mut(token as usize) else { return };
            if *said == 0 {
                tokens.push(token);
            }
            *said = how(*said);
        };
        for position in 0..if with_prompt { prompt_len } else { 0 } {
            note(table.prompt_token(batch, slot, position), |said| said | PROMPTED);
        }
        for place in 0..generated {
            note(table.output(batch, slot, place), |said| said + 1);
        }
    }
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
