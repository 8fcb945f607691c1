//! Answers on their way into the output: kept until their request is complete, written now and then.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::error::JobError;
use super::item::{Item, Request};
use super::output::{Ended, Provenance, answer_line, error_line};
use super::sink::Sink;
use super::stop::Answer;

/// Finished answers wait for so long at most while others of their group go on: each write is synced.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Where every line of a job lies, and what has no line yet.
#[derive(Debug)]
pub(super) struct Answers<'j> {
    items: &'j [Item],
    /// Where each item's line lies in the output; `None`: not written.
    lines: &'j mut [Option<Range<u64>>],
    /// What is to be told of each item's answers.
    ended: &'j mut [Ended],
    sink: &'j mut Sink,
    provenance: &'j Provenance,
    /// For each item, each of its answers.
    answers: Vec<Vec<Option<Answer>>>,
    /// Answers came since the last write.
    waiting: bool,
    written: Instant,
}

impl<'j> Answers<'j> {
    pub(super) fn new(
        items: &'j [Item],
        lines: &'j mut [Option<Range<u64>>],
        ended: &'j mut [Ended],
        sink: &'j mut Sink,
        provenance: &'j Provenance,
    ) -> Answers<'j> {
        let answers = items.iter().map(|item| match item {
            Item::Request(request) => vec![None; request.choices()],
            Item::Error(_) => Vec::new(),
        });
        let answers = answers.collect();
        let (waiting, written) = (false, Instant::now());
        Answers { items, lines, ended, sink, provenance, answers, waiting, written }
    }

    /// Takes one of an item's answers.
    pub(super) fn add(&mut self, item: usize, choice: usize, answer: Answer) {
        self.answers[item][choice] = Some(answer);
        self.waiting = true;
    }

    /// Writes what has waited for long enough.
    ///
    /// # Errors
    /// An output that cannot be written.
    pub(super) fn write_in_time(&mut self) -> Result<(), JobError> {
        if self.waiting && self.written.elapsed() >= WRITE_EVERY { self.write() } else { Ok(()) }
    }

    /// Writes every line that is known. A stream gets them in input order, up to the first request that
    /// is not completely answered; a file is brought into order at the end.
    ///
    /// # Errors
    /// An output that cannot be written.
    pub(super) fn write(&mut self) -> Result<(), JobError> {
        let mut text = Vec::new();
        let mut written = Vec::new();
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
        let whole = self.sink.append(&text)?;
        for (index, range) in written {
            self.lines[index] = Some(whole.start + range.start..whole.start + range.end);
        }
        self.waiting = false;
        self.written = Instant::now();
        Ok(())
    }

    /// The line of a request that has all its answers, which go into it.
    fn answered(&mut self, index: usize, request: &Request) -> Option<Vec<u8>> {
        let answers = &mut self.answers[index];
        if answers.iter().any(Option::is_none) {
            return None;
        }
        let answers = std::mem::take(answers).into_iter().flatten().collect();
        let (line, ended) = answer_line(request, answers, self.provenance);
        self.ended[index] = ended;
        Some(line)
    }
}
