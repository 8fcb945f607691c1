//! Buffer of a job's answers on their way into the output. [`Answers`] keeps each answer until its
//! request is complete and writes to the sink at intervals.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::error::JobError;
use super::sink::Sink;
use super::unfinished::Unfinished;
use crate::openai::echo::OfPrompt;
use crate::openai::item::{Item, Request};
use crate::openai::output::{
    Completion, Provenance, answer_line, done, error_line, unfinished_line,
};
use crate::openai::stop::Answer;

/// Maximum time that a finished answer waits for a write while others of its group run: each write
/// is synced.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Positions of a job's lines in the output, and the answers that have no line yet.
#[derive(Debug)]
pub(super) struct Answers<'j> {
    items: &'j [Item],
    /// Position of each item's line in the output; `None` if it is not written.
    lines: &'j mut [Option<Range<u64>>],
    /// Outcome of each item's answers.
    ended: &'j mut [Completion],
    sink: &'j mut Sink,
    provenance: &'j Provenance,
    /// Answers made so far for each item whose line is not written.
    unfinished: &'j mut [Unfinished],
    /// Answers since the last write: indices of choices by item.
    fresh: BTreeMap<usize, Vec<usize>>,
    written: Instant,
}

impl<'j> Answers<'j> {
    pub(super) fn new(
        items: &'j [Item],
        lines: &'j mut [Option<Range<u64>>],
        ended: &'j mut [Completion],
        unfinished: &'j mut [Unfinished],
        sink: &'j mut Sink,
        provenance: &'j Provenance,
    ) -> Answers<'j> {
        let (fresh, written) = (BTreeMap::new(), Instant::now());
        Answers { items, lines, ended, unfinished, sink, provenance, fresh, written }
    }

    /// Adds one of an item's answers, with the details of its prompt that were requested.
    pub(super) fn add(&mut self, item: usize, choice: usize, answer: Answer, prompt: OfPrompt<'_>) {
        let mut made = done(prompt.request, choice, answer);
        prompt.tell(&mut made);
        self.unfinished[item].made[choice] = Some(made);
        self.fresh.entry(item).or_default().push(choice);
    }

    /// Writes the buffered answers if the last write is at least [`WRITE_EVERY`] ago.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub(super) fn write_in_time(&mut self) -> Result<(), JobError> {
        if !self.fresh.is_empty() && self.written.elapsed() >= WRITE_EVERY {
            self.write()
        } else {
            Ok(())
        }
    }

    /// Writes every line that is known. A stream gets them in input order, up to the first request
    /// that is not completely answered; a file, which is sorted at the end, also gets the answers
    /// to requests that are partly answered.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub(super) fn write(&mut self) -> Result<(), JobError> {
        let mut text = Vec::new();
        let mut written = Vec::new();
        let fresh = std::mem::take(&mut self.fresh);
        let items = self.items;
        for (index, item) in items.iter().enumerate() {
            if self.lines[index].is_some() {
                continue;
            }
            let line = match item {
                Item::Error(error) => Some(error_line(error)),
                Item::Request(request) => self.answered(index, request),
            };
            match line {
                Some(line) => {
                    let start = text.len() as u64;
                    text.extend(line);
                    written.push((index, start..text.len() as u64));
                }
                None if self.sink.is_log() => {}
                None => break,
            }
        }
        let mut begun = Vec::new();
        for (index, choices) in fresh {
            if self.sink.is_log() && self.unfinished[index].is_open() {
                let start = text.len() as u64;
                text.extend(self.some(index, choices));
                begun.push((index, start..text.len() as u64));
            }
        }
        let whole = self.sink.append(&text)?;
        let placed = |range: Range<u64>| whole.start + range.start..whole.start + range.end;
        for (index, range) in written {
            self.lines[index] = Some(placed(range));
            self.unfinished[index].lines.clear();
        }
        for (index, range) in begun {
            self.unfinished[index].lines.push(placed(range));
        }
        self.written = Instant::now();
        Ok(())
    }

    /// Merges the several lines of a partly answered request into one, before its answers are left
    /// for a later run.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub(super) fn join_unfinished(&mut self) -> Result<(), JobError> {
        for index in 0..self.unfinished.len() {
            if self.unfinished[index].lines.len() > 1 {
                let all = self.unfinished[index].made.iter().enumerate();
                let all = all.filter_map(|(choice, done)| done.is_some().then_some(choice));
                let line = self.some(index, all.collect());
                self.unfinished[index].lines = vec![self.sink.append(&line)?];
            }
        }
        Ok(())
    }

    /// Returns the line of a partly answered request, with these choices.
    fn some(&self, index: usize, choices: Vec<usize>) -> Vec<u8> {
        let Item::Request(request) = &self.items[index] else { return Vec::new() };
        let made =
            choices.into_iter().filter_map(|choice| self.unfinished[index].made[choice].clone());
        unfinished_line(request, made.collect(), self.provenance)
    }

    /// Returns the line of a completely answered request, or `None` while choices are missing.
    /// Moves its answers out of the buffer.
    fn answered(&mut self, index: usize, request: &Request) -> Option<Vec<u8>> {
        let unfinished = &mut self.unfinished[index];
        if unfinished.is_open() {
            return None;
        }
        let answers = std::mem::take(&mut unfinished.made).into_iter().flatten().collect();
        let (line, ended) = answer_line(request, answers, self.provenance);
        self.ended[index] = ended;
        Some(line)
    }
}
