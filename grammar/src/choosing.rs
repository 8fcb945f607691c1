//! Matcher of an answer that is one of several texts, given as token sequences.

use std::ops::Range;

/// Texts that are still possible.
#[derive(Debug, Clone)]
pub(crate) struct Choosing {
    /// Range of the possible texts, which are sorted by their tokens; all of them begin with the
    /// tokens taken so far.
    left: Range<usize>,
    taken: usize,
}

impl Choosing {
    /// Creates a matcher for this number of texts, all of which are possible.
    pub(crate) fn new(texts: usize) -> Choosing {
        Choosing { left: 0..texts, taken: 0 }
    }

    /// Returns the allowed tokens, with repetitions.
    pub(crate) fn next<'t>(&self, texts: &'t [Vec<u32>]) -> impl Iterator<Item = u32> + use<'t> {
        let taken = self.taken;
        texts[self.left.clone()].iter().filter_map(move |text| text.get(taken).copied())
    }

    /// Advances by a token; returns true if a text is still possible.
    pub(crate) fn take(&mut self, texts: &[Vec<u32>], token: u32) -> bool {
        let left = &texts[self.left.clone()];
        // A text that ends here precedes its continuations.
        let first = left.partition_point(|text| text.get(self.taken) < Some(&token));
        let end = left.partition_point(|text| text.get(self.taken) <= Some(&token));
        self.left = self.left.start + first..self.left.start + end;
        self.taken += 1;
        !self.left.is_empty()
    }

    /// Returns true if the tokens taken so far are a whole text.
    pub(crate) fn is_complete(&self, texts: &[Vec<u32>]) -> bool {
        texts[self.left.clone()].first().is_some_and(|text| text.len() == self.taken)
    }
}
