//! The answers to a request that is partly answered.

use std::ops::Range;

use crate::openai::item::Item;
use crate::openai::output::Done;

/// Answers made so far for one item, until its line is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unfinished {
    /// Each of its answers, by choice; empty for an error.
    pub made: Vec<Option<Done>>,
    /// Positions of the output lines that hold some of them.
    pub lines: Vec<Range<u64>>,
}

impl Unfinished {
    /// Creates an empty entry for each answer to an item.
    pub fn nothing(item: &Item) -> Unfinished {
        let choices = match item {
            Item::Request(request) => request.choices(),
            Item::Error(_) => 0,
        };
        Unfinished { made: vec![None; choices], lines: Vec::new() }
    }

    /// Returns true if an answer is still to be made.
    pub fn is_open(&self) -> bool {
        self.made.iter().any(Option::is_none)
    }
}
