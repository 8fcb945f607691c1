//! Log-probabilities of an answer as the engine reports them, until they are written: an entry
//! takes eight bytes here, and about two hundred once its token is spelled.

use engine_api::codec::TextCodec;
use engine_api::event::Logprob;

use super::logprobs::{Logprobs, Spelling};

/// Log-probabilities of the tokens of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RawLogprobs {
    /// Entries of all tokens, `width` for each of them, the token's own first.
    entries: Vec<Logprob>,
    entries_per_token: usize,
    /// Number of characters of the text before each token.
    starts: Vec<usize>,
    /// Tokens are represented by their ids.
    spells_ids: bool,
}

impl RawLogprobs {
    /// Stores the first `starts.len()` tokens of `entries`, which has `entries_per_token` entries
    /// for each of them.
    pub fn new(
        mut entries: Vec<Logprob>,
        entries_per_token: usize,
        starts: Vec<usize>,
        spells_ids: bool,
    ) -> RawLogprobs {
        entries.truncate(entries_per_token * starts.len());
        RawLogprobs { entries, entries_per_token, starts, spells_ids }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes the first `count` tokens.
    #[must_use]
    pub fn skip(mut self, count: usize) -> RawLogprobs {
        let count = count.min(self.starts.len());
        self.starts.drain(..count);
        self.entries.drain(..count * self.entries_per_token);
        self
    }

    /// Spells the tokens.
    pub fn decode(self, codec: Option<&dyn TextCodec>) -> Logprobs {
        let spelling = Spelling { codec, spells_ids: self.spells_ids };
        Logprobs::new(&self.entries, self.entries_per_token.max(1), self.starts, spelling)
    }
}
