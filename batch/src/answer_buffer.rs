//! Buffer of a job's answers on their way into the output. [`AnswerBuffer`] keeps each answer until
//! its request is complete and writes to the sink at intervals.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use openai::echo::PromptOutput;
use openai::input_line::{CompletionRequest, InputLine};
use openai::output::{
    Completion, Provenance, answer_line, error_line, finish_choice, unfinished_line,
};
use openai::stop::Answer;

use super::error::JobError;
use super::sink::OutputSink;
use super::unfinished::UnfinishedAnswers;

/// Maximum time that a finished answer waits for a write while others of its group run: each write
/// is synced.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Positions of a job's lines in the output, and the answers that have no line yet.
#[derive(Debug)]
pub(super) struct AnswerBuffer<'j> {
    items: &'j [InputLine],
    /// Position of each item's line in the output; `None` if it is not written.
    lines: &'j mut [Option<Range<u64>>],
    /// Outcome of each item's answers.
    completions: &'j mut [Completion],
    sink: &'j mut OutputSink,
    provenance: &'j Provenance,
    /// Answers made so far for each item whose line is not written.
    unfinished: &'j mut [UnfinishedAnswers],
    /// Answers since the last write: indices of choices by item.
    unwritten: BTreeMap<usize, Vec<usize>>,
    last_write: Instant,
}

impl<'j> AnswerBuffer<'j> {
    pub(super) fn new(
        items: &'j [InputLine],
        lines: &'j mut [Option<Range<u64>>],
        completions: &'j mut [Completion],
        unfinished: &'j mut [UnfinishedAnswers],
        sink: &'j mut OutputSink,
        provenance: &'j Provenance,
    ) -> AnswerBuffer<'j> {
        let (unwritten, last_write) = (BTreeMap::new(), Instant::now());
        AnswerBuffer {
            items,
            lines,
            completions,
            unfinished,
            sink,
            provenance,
            unwritten,
            last_write,
        }
    }

    /// Adds one of an item's answers, with the details of its prompt that were requested.
    pub(super) fn add(
        &mut self,
        item: usize,
        choice: usize,
        answer: Answer,
        prompt_output: PromptOutput<'_>,
    ) {
        let mut finished = finish_choice(prompt_output.request, choice, answer);
        prompt_output.add_to(&mut finished);
        self.unfinished[item].choices[choice] = Some(finished);
        self.unwritten.entry(item).or_default().push(choice);
    }

    /// Writes the buffered answers if the last write is at least [`WRITE_EVERY`] ago.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub(super) fn write_if_due(&mut self) -> Result<(), JobError> {
        if !self.unwritten.is_empty() && self.last_write.elapsed() >= WRITE_EVERY {
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
        let fresh = std::mem::take(&mut self.unwritten);
        let items = self.items;
        for (index, item) in items.iter().enumerate() {
            if self.lines[index].is_some() {
                continue;
            }
            let line = match item {
                InputLine::Error(error) => Some(error_line(error)),
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
        for (index, choices) in fresh {
            if self.sink.is_log() && self.unfinished[index].is_incomplete() {
                let start = text.len() as u64;
                text.extend(self.partial_line(index, choices));
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
            if self.unfinished[index].lines.len() > 1 {
                let all = self.unfinished[index].choices.iter().enumerate();
                let all = all.filter_map(|(choice, done)| done.is_some().then_some(choice));
                let line = self.partial_line(index, all.collect());
                self.unfinished[index].lines = vec![self.sink.append(&line)?];
            }
        }
        Ok(())
    }

    /// Returns the line of a partly answered request, with these choices.
    fn partial_line(&self, index: usize, choices: Vec<usize>) -> Vec<u8> {
        let InputLine::Request(request) = &self.items[index] else { return Vec::new() };
        let finished =
            choices.into_iter().filter_map(|choice| self.unfinished[index].choices[choice].clone());
        unfinished_line(request, finished.collect(), self.provenance)
    }

    /// Returns the line of a completely answered request, or `None` while choices are missing.
    /// Moves its answers out of the buffer.
    fn take_complete_line(&mut self, index: usize, request: &CompletionRequest) -> Option<Vec<u8>> {
        let unfinished = &mut self.unfinished[index];
        if unfinished.is_incomplete() {
            return None;
        }
        let answers = std::mem::take(&mut unfinished.choices).into_iter().flatten().collect();
        let (line, ended) = answer_line(request, answers, self.provenance);
        self.completions[index] = ended;
        Some(line)
    }
}
