//! State of a scoring job: its items and the lines of its output.

use std::ops::Range;

use openai::input_line::summarize_errors;

use super::question::{ScoreDetails, ScoreInputLine, ScoreQuestion};
use super::summary::ScoreTotals;
use super::windows::WindowSizes;
use crate::sink::OutputSink;

/// A job that is read, checked and ready to run.
#[derive(Debug)]
pub struct ScoreJob {
    pub(super) items: Vec<ScoreInputLine>,
    /// Position of each item's line in the output; `None` if it is still to be made.
    pub(super) lines: Vec<Option<Range<u64>>>,
    /// Totals of each item's scores.
    pub(super) totals: Vec<ScoreTotals>,
    /// Number of scores in the output that the input no longer requests.
    pub(super) replaced: usize,
    pub(super) sink: OutputSink,
    pub(super) details: ScoreDetails,
    /// Window sizes, if the input is a text; the items are then its windows.
    pub(super) windows: Option<WindowSizes>,
    pub(super) system_fingerprint: String,
}

impl ScoreJob {
    /// Returns a one-line summary of a resumed output; `None` if it holds no score.
    pub fn resume_summary(&self) -> Option<String> {
        let kept = self.items.iter().zip(&self.lines);
        let kept = kept
            .filter(|(item, line)| matches!(item, ScoreInputLine::Question(_)) && line.is_some());
        let (kept, remaining) = (kept.count(), self.pending().count());
        (kept + self.replaced > 0).then(|| match self.replaced {
            0 => format!("{kept} lines kept, {remaining} remaining"),
            replaced => {
                format!("{kept} lines kept, {replaced} replaced or dropped, {remaining} remaining")
            }
        })
    }

    /// Returns the number of lines with errors and the first message, if there are any.
    pub fn error_summary(&self) -> Option<String> {
        let errors = self.items.iter().filter_map(|item| match item {
            ScoreInputLine::Error(error) => Some(error),
            ScoreInputLine::Question(_) => None,
        });
        summarize_errors(errors, self.items.len())
    }

    /// Returns true if questions are left for an engine.
    pub fn needs_engine(&self) -> bool {
        self.pending().next().is_some()
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = (usize, &ScoreQuestion)> {
        self.items.iter().enumerate().filter_map(|(index, item)| match item {
            ScoreInputLine::Question(question) if self.lines[index].is_none() => {
                Some((index, question))
            }
            _ => None,
        })
    }

    /// Returns the question of an item that is not an error.
    pub(super) fn question(&self, item: usize) -> &ScoreQuestion {
        match &self.items[item] {
            ScoreInputLine::Question(question) => question,
            ScoreInputLine::Error(_) => unreachable!("tickets are made of questions"),
        }
    }
}

/// A continuation, by the indices of its item and within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContinuationId {
    pub(super) item: usize,
    pub(super) continuation: usize,
}
