//! An answer on its way to one of some texts, by the tokens that spell each of them.

use std::ops::Range;

/// Which texts are still possible.
#[derive(Debug, Clone)]
pub(crate) struct Choosing {
    /// Of the texts in ascending order of their tokens; all of them have the tokens taken so far.
    left: Range<usize>,
    taken: usize,
}

impl Choosing {
    /// Among all of so many texts.
    pub(crate) fn new(texts: usize) -> Choosing {
        Choosing { left: 0..texts, taken: 0 }
    }

    /// The tokens that can follow, some of them several times.
    pub(crate) fn next<'t>(&self, texts: &'t [Vec<u32>]) -> impl Iterator<Item = u32> + use<'t> {
        let taken = self.taken;
        texts[self.left.clone()].iter().filter_map(move |text| text.get(taken).copied())
    }

    /// Goes on with a token; whether a text is still possible.
    pub(crate) fn take(&mut self, texts: &[Vec<u32>], token: u32) -> bool {
        let left = &texts[self.left.clone()];
        // A text that ends here comes before those that go on.
        let first = left.partition_point(|text| text.get(self.taken) < Some(&token));
        let end = left.partition_point(|text| text.get(self.taken) <= Some(&token));
        self.left = self.left.start + first..self.left.start + end;
        self.taken += 1;
        !self.left.is_empty()
    }

    /// Whether the tokens taken so far are a text as a whole.
    pub(crate) fn is_complete(&self, texts: &[Vec<u32>]) -> bool {
        texts[self.left.clone()].first().is_some_and(|text| text.len() == self.taken)
    }
}
