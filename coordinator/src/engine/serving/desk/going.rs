//! A sequence on its way.

use super::Going;
use crate::boundary::serving::{Event, Finish, Listening};

impl Going {
    /// All its tokens, of the prompt and the answer.
    pub(super) fn tokens(&self) -> Vec<u32> {
        [self.request.prompt.as_slice(), &self.answered].concat()
    }

    /// Of its tokens those whose keys and values others of the same tokens would have: all, or
    /// where new tokens select what they attend to its prompt's.
    pub(super) fn shared_end(&self, selects: bool) -> usize {
        if selects { self.request.prompt.len() } else { self.known() }
    }

    /// How many of its tokens, from the first on, may be found in caches.
    pub(super) fn shareable(&self) -> usize {
        let told = if self.said.count > 0 { self.said.first as usize } else { usize::MAX };
        told.min(self.known())
    }

    /// How many of its tokens, from the first on, may be found, in caches of others or stored.
    pub(super) fn findable(&self, selects: bool) -> usize {
        self.shareable().min(self.shared_end(selects))
    }

    pub(super) fn known(&self) -> usize {
        self.request.prompt.len() + self.answered.len()
    }

    /// Tokens that it may come to have.
    pub(super) fn longest(&self) -> u32 {
        self.request.prompt.len() as u32 + self.request.max_new
    }

    pub(super) fn is_end(&self, token: u32, eos: &[u32]) -> bool {
        eos.contains(&token) && !self.request.ignore_eos
    }

    /// Why it needs no more tokens, by those that were told: the last one ends it, or there are as
    /// many as were asked for. `None` of one that has no tokens of its own.
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
