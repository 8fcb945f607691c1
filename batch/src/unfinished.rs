//! The answers to a request that is partly answered.

use std::ops::Range;

use openai::input_line::InputLine;
use openai::output::FinishedChoice;

/// Answers made so far for one item, until its line is written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnfinishedAnswers {
    /// Each of its answers, by choice; empty for an error.
    pub choices: Vec<Option<FinishedChoice>>,
    /// Positions of the output lines that hold some of them.
    pub lines: Vec<Range<u64>>,
}

impl UnfinishedAnswers {
    /// Creates an empty entry for each answer to an item.
    pub fn empty(item: &InputLine) -> UnfinishedAnswers {
        let choices = match item {
            InputLine::Request(request) => request.choice_count(),
            InputLine::Error(_) => 0,
        };
        UnfinishedAnswers { choices: vec![None; choices], lines: Vec::new() }
    }

    /// Returns true if an answer is still to be made.
    pub fn is_incomplete(&self) -> bool {
        self.choices.iter().any(Option::is_none)
    }
}
