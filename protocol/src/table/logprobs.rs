//! Log-probabilities of new tokens, and of the tokens of prompts.

use kernels::Logprob;
use program::step_table::{Field, LOGPROB_WORDS};

use super::StepTable;

impl StepTable {
    /// Returns the log-probabilities of a sampled token, as many as the sequence requests: that of
    /// the token itself, then those of the most likely tokens.
    pub fn logprobs(
        &self,
        batch: usize,
        sequence: usize,
        position: usize,
    ) -> impl Iterator<Item = Logprob> {
        let wanted = self.field(batch, sequence, Field::Logprobs) as usize;
        let first = self.logprobs_at(batch, sequence, position, wanted);
        (0..wanted).map(move |i| self.logprob(first + i * LOGPROB_WORDS))
    }

    /// Writes the log-probabilities of a sampled token.
    pub fn set_logprobs(&self, batch: usize, sequence: usize, position: usize, found: &[Logprob]) {
        let first = self.logprobs_at(batch, sequence, position, found.len());
        for (i, Logprob { token, logprob }) in found.iter().enumerate() {
            let at = first + i * LOGPROB_WORDS;
            self.words.store(at, *token);
            self.words.store(at + 1, logprob.to_bits());
        }
    }

    /// Returns the log-probabilities of a token of a prompt, other than its first, as many as the
    /// sequence requests.
    pub fn prompt_logprobs(
        &self,
        batch: usize,
        sequence: usize,
        position: usize,
    ) -> impl Iterator<Item = Logprob> {
        let wanted = self.field(batch, sequence, Field::PromptLogprobs) as usize;
        let place = self.layout.max_new as usize - position;
        let first = self.logprobs_at(batch, sequence, place, wanted);
        (0..wanted).map(move |i| self.logprob(first + i * LOGPROB_WORDS))
    }

    /// Writes the log-probabilities of a token of a prompt, other than its first.
    pub fn set_prompt_logprobs(
        &self,
        batch: usize,
        sequence: usize,
        position: usize,
        found: &[Logprob],
    ) {
        self.set_logprobs(batch, sequence, self.layout.max_new as usize - position, found);
    }

    fn logprob(&self, at: usize) -> Logprob {
        Logprob { token: self.words.load(at), logprob: f32::from_bits(self.words.load(at + 1)) }
    }

    /// Returns the offset of a token's log-probabilities, of which `used` are accessed.
    fn logprobs_at(&self, batch: usize, sequence: usize, position: usize, used: usize) -> usize {
        assert!(position < self.layout.max_new as usize, "output position {position}");
        assert!(used <= self.layout.logprobs as usize, "{used} of {}", self.layout.logprobs);
        self.layout.logprobs(batch, sequence, position)
    }
}
