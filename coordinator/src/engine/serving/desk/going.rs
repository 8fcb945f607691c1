//! A sequence on its way.

use super::Going;
use crate::boundary::serving::{Event, Listening};

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

    pub(super) fn tell(&mut self, event: Event) {
        if !self.is_left {
            self.is_left = self.listener.tell(event) == Listening::No;
        }
    }
}
