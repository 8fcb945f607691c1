//! Matcher of an answer that is one of several texts, given as token sequences.

use std::ops::Range;

/// Texts that are still possible.
#[derive(Debug, Clone)]
pub(crate) struct ChoiceMatcher {
    /// Range of the possible texts, which are sorted by their tokens; all of them begin with the
    /// tokens taken so far.
    candidates: Range<usize>,
    taken: usize,
}

impl ChoiceMatcher {
    /// Creates a matcher for this number of texts, all of which are possible.
    pub(crate) fn new(texts: usize) -> ChoiceMatcher {
        ChoiceMatcher { candidates: 0..texts, taken: 0 }
    }

    /// Returns the allowed tokens, with repetitions.
    pub(crate) fn allowed_tokens<'t>(
        &self,
        texts: &'t [Vec<u32>],
    ) -> impl Iterator<Item = u32> + use<'t> {
        let taken = self.taken;
        texts[self.candidates.clone()].iter().filter_map(move |text| text.get(taken).copied())
    }

    /// Advances by a token; returns true if a text is still possible.
    pub(crate) fn accept_token(&mut self, texts: &[Vec<u32>], token: u32) -> bool {
        let candidates = &texts[self.candidates.clone()];
        // A text that ends here precedes its continuations.
        let first = candidates.partition_point(|text| text.get(self.taken) < Some(&token));
        let end = candidates.partition_point(|text| text.get(self.taken) <= Some(&token));
        self.candidates = self.candidates.start + first..self.candidates.start + end;
        self.taken += 1;
        !self.candidates.is_empty()
    }

    /// Returns true if the tokens taken so far are a whole text.
    pub(crate) fn is_complete(&self, texts: &[Vec<u32>]) -> bool {
        texts[self.candidates.clone()].first().is_some_and(|text| text.len() == self.taken)
    }
}
