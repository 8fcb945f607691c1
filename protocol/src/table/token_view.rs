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
}

impl StepTable {
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
