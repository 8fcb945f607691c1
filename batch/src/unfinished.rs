//! The answers to a request that is partly answered.

use std::ops::Range;

use openai::input_line::InputLine;

use super::kind::JobRequest;

/// Answers made so far for one item, until its line is written.
#[derive(Debug, Clone)]
pub(super) struct UnfinishedAnswers<P> {
    /// Result of each of its sequences; empty for an error.
    pub(super) parts: Vec<Option<P>>,
    /// Positions of the output lines that hold some of them.
    pub(super) lines: Vec<Range<u64>>,
}

impl<P> Default for UnfinishedAnswers<P> {
    fn default() -> UnfinishedAnswers<P> {
        UnfinishedAnswers { parts: Vec::new(), lines: Vec::new() }
    }
}

impl<P> UnfinishedAnswers<P> {
    /// Creates an entry without results for each sequence of an item.
    pub(super) fn empty<R: JobRequest>(item: &InputLine<R>) -> UnfinishedAnswers<P> {
        let sequences = item.request().map_or(0, JobRequest::sequence_count);
        UnfinishedAnswers { parts: (0..sequences).map(|_| None).collect(), lines: Vec::new() }
    }

    /// Returns true if a result is still missing.
    pub(super) fn is_incomplete(&self) -> bool {
        self.parts.iter().any(Option::is_none)
    }
}
