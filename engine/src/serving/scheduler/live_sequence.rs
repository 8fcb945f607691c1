//! Tokens and progress of a sequence that is not answered yet.

use engine_api::request::Pooling;
use engine_api::serving::{EngineEvent, FinishCause};

use super::LiveSequence;

impl LiveSequence {
    /// Returns all tokens of the prompt and the answer.
    pub(super) fn tokens(&self) -> Vec<u32> {
        [&self.request.prompt[..], &self.generated].concat()
    }

    /// Returns the number of tokens whose keys and values other sequences with the same tokens
    /// would have: all of them, or only the prompt's if new tokens select the positions that they
    /// attend to.
    pub(super) fn shareable_computed(&self, selects: bool) -> usize {
        if selects { self.request.prompt.len() } else { self.token_count() }
    }

    /// Returns the number of tokens, from the first on, that may be found in caches.
    pub(super) fn shareable_tokens(&self) -> usize {
        let max_shared = match self.request.pooling {
            // The first row is pooled too.
            Some(Pooling::Mean) => 1,
            _ if self.request.prompt_logprobs > 0 => {
                self.request.prompt_logprobs_from.max(1) as usize
            }
            _ => usize::MAX,
        };
        max_shared.min(self.token_count())
    }

    /// Returns the number of tokens, from the first on, that may be found in caches of others or in
    /// the store.
    pub(super) fn reusable_tokens(&self, selects: bool) -> usize {
        self.shareable_tokens().min(self.shareable_computed(selects))
    }

    pub(super) fn token_count(&self) -> usize {
        self.request.prompt.len() + self.generated.len()
    }

    /// Returns the maximum number of tokens that the sequence can have.
    pub(super) fn max_tokens(&self) -> u32 {
        self.request.prompt.len() as u32 + self.request.max_new
    }

    pub(super) fn is_end(&self, token: u32, eos: &[u32]) -> bool {
        let rules = self.request.token_rules.as_ref();
        eos.contains(&token) && !self.request.ignore_eos
            || rules.is_some_and(|rules| rules.stop_token_ids.contains(&token))
    }

    /// Returns the reason why the sequence needs no more tokens, according to those that were
    /// reported: the last one ends it, or there are as many as requested. Returns `None` for a
    /// sequence without new tokens.
    pub(super) fn finish_cause(&self, eos: &[u32]) -> Option<FinishCause> {
        let last = *self.generated.last()?;
        if self.is_end(last, eos) {
            return Some(FinishCause::Stop);
        }
        let is_full = self.generated.len() >= self.request.max_new as usize;
        is_full.then_some(FinishCause::Length)
    }

    pub(super) fn send(&mut self, event: EngineEvent) {
        if !self.is_cancelled {
            self.is_cancelled = self.sink.on_event(event).is_break();
        }
    }
}
