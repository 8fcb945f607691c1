//! A job that scores: its items, and what is known of them.

use std::ops::Range;

use super::item::{Item, Question, Shown};
use super::summary::Tally;
use super::windows::Windows;
use crate::job::sink::Sink;
use crate::openai::item::errors_of;

/// A job that is read, checked and ready to run.
#[derive(Debug)]
pub struct Job {
    pub(super) items: Vec<Item>,
    /// Where each item's line lies in the output; `None`: still to do.
    pub(super) lines: Vec<Option<Range<u64>>>,
    /// What the lines say.
    pub(super) tallies: Vec<Tally>,
    /// Scores in the output that the input no longer asks for.
    pub(super) replaced: usize,
    pub(super) sink: Sink,
    pub(super) shown: Shown,
    /// Of a text, whose windows the items are.
    pub(super) windows: Option<Windows>,
    pub(super) system_fingerprint: String,
}

impl Job {
    /// What a resumed output holds, in a line; `None` where it holds no score.
    pub fn resumed(&self) -> Option<String> {
        let kept = self.items.iter().zip(&self.lines);
        let kept = kept.filter(|(item, line)| matches!(item, Item::Question(_)) && line.is_some());
        let (kept, left) = (kept.count(), self.pending().count());
        (kept + self.replaced > 0).then(|| match self.replaced {
            0 => format!("{kept} lines kept, {left} to be made"),
            replaced => {
                format!("{kept} lines kept, {replaced} replaced or dropped, {left} to be made")
            }
        })
    }

    /// How many lines have errors, and the first of their sentences.
    pub fn errors(&self) -> Option<String> {
        let errors = self.items.iter().filter_map(|item| match item {
            Item::Error(error) => Some(error),
            Item::Question(_) => None,
        });
        errors_of(errors, self.items.len())
    }

    /// Whether something is left for an engine.
    pub fn needs_engine(&self) -> bool {
        self.pending().next().is_some()
    }

    pub(super) fn pending(&self) -> impl Iterator<Item = (usize, &Question)> {
        self.items.iter().enumerate().filter_map(|(index, item)| match item {
            Item::Question(question) if self.lines[index].is_none() => Some((index, question)),
            _ => None,
        })
    }

    /// The question that a sequence is of.
    pub(super) fn question(&self, item: usize) -> &Question {
        match &self.items[item] {
            Item::Question(question) => question,
            Item::Error(_) => unreachable!("tickets are made of questions"),
        }
    }
}

/// A continuation of an item, by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) item: usize,
    pub(super) continuation: usize,
}
