//! Buffer of a job's answers on their way into the output. [`AnswerBuffer`] keeps each answer until
//! its request is complete and writes to the sink at intervals.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use openai::input_line::InputLine;

use super::error::JobError;
use super::kind::{JobKind, SequenceId};
use super::progress::LineCounts;
use super::sink::OutputSink;
use super::unfinished::UnfinishedAnswers;

/// Maximum time that a finished answer waits for a write while others of its group run: each write
/// is synced.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Positions of a job's lines in the output, and the answers that have no line yet.
pub(super) struct AnswerBuffer<'j, K: JobKind> {
    kind: &'j K,
    items: &'j [InputLine<K::Request>],
    /// Position of each item's line in the output; `None` if it is not written.
    lines: &'j mut [Option<Range<u64>>],
    /// Facts about each item's answers.
    outcomes: &'j mut [K::Outcome],
    sink: &'j mut OutputSink,
    /// Answers made so far for each item whose line is not written.
    unfinished: &'j mut [UnfinishedAnswers<K::Part>],
    /// Answers since the last write: indices of sequences by item.
    unwritten: BTreeMap<usize, Vec<usize>>,
    last_write: Instant,
}

impl<'j, K: JobKind> AnswerBuffer<'j, K> {
    pub(super) fn new(
        kind: &'j K,
        items: &'j [InputLine<K::Request>],
        lines: &'j mut [Option<Range<u64>>],
        outcomes: &'j mut [K::Outcome],
        unfinished: &'j mut [UnfinishedAnswers<K::Part>],
        sink: &'j mut OutputSink,
    ) -> AnswerBuffer<'j, K> {
        let (unwritten, last_write) = (BTreeMap::new(), Instant::now());
        AnswerBuffer { kind, items, lines, outcomes, sink, unfinished, unwritten, last_write }
    }

    /// Adds the result of a sequence.
    pub(super) fn add(&mut self, SequenceId { item, index }: SequenceId, part: K::Part) {
        self.unfinished[item].parts[index] = Some(part);
        self.unwritten.entry(item).or_default().push(index);
    }

    /// Writes the buffered answers if the last write is at least [`WRITE_EVERY`] ago; returns true
    /// if it did.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub(super) fn write_if_due(&mut self) -> Result<bool, JobError> {
        let is_due = !self.unwritten.is_empty() && self.last_write.elapsed() >= WRITE_EVERY;
        if is_due {
            self.write()?;
        }
        Ok(is_due)
    }

    /// Counts the lines that are written.
    pub(super) fn counts(&self) -> LineCounts {
        let mut counts = LineCounts { total: self.items.len(), ..LineCounts::default() };
        for (item, _) in self.items.iter().zip(&*self.lines).filter(|(_, line)| line.is_some()) {
            match item {
                InputLine::Request(_) => counts.answered += 1,
                InputLine::Error(_) => counts.failed += 1,
            }
        }
        counts
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
        let fresh = std::mem::take(&mut self.unwritten);
        let items = self.items;
        for (index, item) in items.iter().enumerate() {
            if self.lines[index].is_some() {
                continue;
            }
            let line = match item {
                InputLine::Error(error) => Some(K::error_line(error)),
                InputLine::Request(request) => self.take_complete_line(index, request),
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
        let mut partial_lines = Vec::new();
        for (index, sequences) in fresh {
            if self.sink.is_log()
                && self.unfinished[index].is_incomplete()
                && let Some(line) = self.partial_line(index, sequences)
            {
                let start = text.len() as u64;
                text.extend(line);
                partial_lines.push((index, start..text.len() as u64));
            }
        }
        let appended = self.sink.append(&text)?;
        let file_range =
            |range: Range<u64>| appended.start + range.start..appended.start + range.end;
        for (index, range) in written {
            self.lines[index] = Some(file_range(range));
            self.unfinished[index].lines.clear();
        }
        for (index, range) in partial_lines {
            self.unfinished[index].lines.push(file_range(range));
        }
        self.last_write = Instant::now();
        Ok(())
    }

    /// Merges the several lines of a partly answered request into one, before its answers are left
    /// for a later run.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub(super) fn merge_unfinished(&mut self) -> Result<(), JobError> {
        for index in 0..self.unfinished.len() {
            if self.unfinished[index].lines.len() > 1
                && let all = (0..self.unfinished[index].parts.len()).collect()
                && let Some(line) = self.partial_line(index, all)
            {
                self.unfinished[index].lines = vec![self.sink.append(&line)?];
            }
        }
        Ok(())
    }

    /// Returns the line of a partly answered request, with the available results of these
    /// sequences.
    fn partial_line(&self, index: usize, sequences: Vec<usize>) -> Option<Vec<u8>> {
        let parts = sequences
            .into_iter()
            .filter_map(|sequence| self.unfinished[index].parts[sequence].clone());
        self.kind.partial_line(self.items[index].request()?, parts.collect())
    }

    /// Returns the line of a completely answered request, or `None` while results are missing.
    /// Moves its results out of the buffer.
    fn take_complete_line(&mut self, index: usize, request: &K::Request) -> Option<Vec<u8>> {
        let unfinished = &mut self.unfinished[index];
        if unfinished.is_incomplete() {
            return None;
        }
        let parts = std::mem::take(&mut unfinished.parts).into_iter().flatten().collect();
        let (line, outcome) = self.kind.complete_line(request, parts);
        self.outcomes[index] = outcome;
        Some(line)
    }
}
