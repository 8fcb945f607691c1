//! Tokens of a sequence in the step table, for reading many of them.

use program::step_table::Field;
use shm::SharedU32s;

use super::StepTable;

/// Tokens of a sequence, whose places in the table are computed once.
#[derive(Debug)]
pub struct TokenView<'a> {
    words: &'a SharedU32s,
    /// First word of the prompt.
    prompt: usize,
    /// First word of the output.
    output: usize,
    prompt_len: usize,
    /// Maximum number of tokens in the output.
    positions: usize,
}

impl TokenView<'_> {
    /// Returns the token at a position, from the prompt or from the output.
    pub fn get(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt_len) {
            None => self.words.load(self.prompt + position),
            Some(place) => {
                debug_assert!(place < self.positions, "output position {place}");
                self.words.load(self.output + place)
            }
        }
    }

    /// Returns a token of the predicted answer, see [`StepTable::set_prediction`].
    pub fn predicted(&self, place: usize) -> u32 {
        self.words.load(self.prompt + self.prompt_len + place)
    }
}

impl StepTable {
    /// Writes the tokens of a predicted answer after those of the prompt, which must be written, as
    /// far as they fit.
    pub fn set_prediction(&self, batch: usize, sequence: usize, tokens: &[u32]) {
        let prompt = self.field(batch, sequence, Field::PromptLen) as usize;
        let free = (self.layout.max_prompt as usize).saturating_sub(prompt);
        let tokens = &tokens[..tokens.len().min(free)];
        let first = self.layout.prompt(batch, sequence) + prompt;
        for (word, token) in (first..).zip(tokens) {
            self.words.store(word, *token);
        }
        self.set_field(batch, sequence, Field::PredictionLen, tokens.len() as u32);
        self.set_field(batch, sequence, Field::PredictionShift, 0);
    }

    /// Returns the tokens of a sequence as its prompt's length is now.
    pub fn tokens(&self, batch: usize, sequence: usize) -> TokenView<'_> {
        TokenView {
            words: &self.words,
            prompt: self.layout.prompt(batch, sequence),
            output: self.layout.output(batch, sequence),
            prompt_len: self.field(batch, sequence, Field::PromptLen) as usize,
            positions: self.layout.max_new as usize,
        }
    }

    /// Writes the token at a position of a sequence, to its prompt or to its output.
    pub fn set_token(&self, batch: usize, sequence: usize, position: usize, token: u32) {
        let prompt = self.field(batch, sequence, Field::PromptLen) as usize;
        match position.checked_sub(prompt) {
            None => self.words.store(self.layout.prompt(batch, sequence) + position, token),
            Some(place) => self.set_output(batch, sequence, place, token),
        }
    }
}
