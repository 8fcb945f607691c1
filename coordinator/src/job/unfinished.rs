//! The answers to a request that has not all of them yet.

use std::ops::Range;

use crate::openai::item::Item;
use crate::openai::output::Done;

/// What is there of the answers to one item, until its line is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unfinished {
    /// Each of its answers; none for an error.
    pub made: Vec<Option<Done>>,
    /// Where some of them lie in the output.
    pub lines: Vec<Range<u64>>,
}

impl Unfinished {
    /// Room for the answers to an item.
    pub fn nothing(item: &Item) -> Unfinished {
        let choices = match item {
            Item::Request(request) => request.choices(),
            Item::Error(_) => 0,
        };
        Unfinished { made: vec![None; choices], lines: Vec::new() }
    }

    /// Whether an answer is still to be made.
    pub fn is_open(&self) -> bool {
        self.made.iter().any(Option::is_none)
    }
}
