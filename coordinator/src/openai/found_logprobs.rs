//! Log-probabilities of an answer as the engine reports them, until they are written: an entry
//! takes eight bytes here, and about two hundred once its token is spelled.

use super::logprobs::Logprobs;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Logprob;

/// Log-probabilities of the tokens of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FoundLogprobs {
    /// Entries of all tokens, `width` for each of them, the token's own first.
    found: Vec<Logprob>,
    width: usize,
    /// Number of characters of the text before each token.
    starts: Vec<usize>,
}

impl FoundLogprobs {
    /// Stores the first `starts.len()` tokens of `found`, which has `width` entries for each of
    /// them.
    pub fn new(mut found: Vec<Logprob>, width: usize, starts: Vec<usize>) -> FoundLogprobs {
        found.truncate(width * starts.len());
        FoundLogprobs { found, width, starts }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Removes the first `count` tokens.
    #[must_use]
    pub fn skip(mut self, count: usize) -> FoundLogprobs {
        let count = count.min(self.starts.len());
        self.starts.drain(..count);
        self.found.drain(..count * self.width);
        self
    }

    /// Spells the tokens.
    pub fn spelled(self, codec: Option<&dyn TextCodec>) -> Logprobs {
        Logprobs::new(&self.found, self.width.max(1), self.starts, codec)
    }
}
