//! Tokens and progress of a sequence that is not answered yet.

use super::Going;
use crate::boundary::serving::{Event, Finish, Listening};

impl Going {
    /// Returns all tokens of the prompt and the answer.
    pub(super) fn tokens(&self) -> Vec<u32> {
        [self.request.prompt.as_slice(), &self.answered].concat()
    }

    /// Returns the number of tokens whose keys and values other sequences with the same tokens
    /// would have: all of them, or only the prompt's if new tokens select the positions that they
    /// attend to.
    pub(super) fn shared_end(&self, selects: bool) -> usize {
        if selects { self.request.prompt.len() } else { self.known() }
    }

    /// Returns the number of tokens, from the first on, that may be found in caches.
    pub(super) fn shareable(&self) -> usize {
        let told = if self.said.count > 0 { self.said.first as usize } else { usize::MAX };
        told.min(self.known())
    }

    /// Returns the number of tokens, from the first on, that may be found in caches of others or in
    /// the store.
    pub(super) fn findable(&self, selects: bool) -> usize {
        self.shareable().min(self.shared_end(selects))
    }

    pub(super) fn known(&self) -> usize {
        self.request.prompt.len() + self.answered.len()
    }

    /// Returns the maximum number of tokens that the sequence can have.
    pub(super) fn longest(&self) -> u32 {
        self.request.prompt.len() as u32 + self.request.max_new
    }

    pub(super) fn is_end(&self, token: u32, eos: &[u32]) -> bool {
        eos.contains(&token) && !self.request.ignore_eos
    }

    /// Returns the reason why the sequence needs no more tokens, according to those that were
    /// reported: the last one ends it, or there are as many as requested. Returns `None` for a
    /// sequence without new tokens.
    pub(super) fn finish(&self, eos: &[u32]) -> Option<Finish> {
        let last = *self.answered.last()?;
        if self.is_end(last, eos) {
            return Some(Finish::Stop);
        }
        let is_full = self.answered.len() >= self.request.max_new as usize;
        is_full.then_some(Finish::Length)
    }

    pub(super) fn tell(&mut self, event: Event) {
        if !self.is_left {
            self.is_left = self.listener.tell(event) == Listening::No;
        }
    }
}
