//! Buffer of a scoring job's lines on their way into the output. [`Lines`] keeps scores until all
//! continuations of an item are scored and writes lines at intervals.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::item::Item;
use super::job::{Job, Ticket};
use super::output::{Score, error_line, not_finite_line, score_line};
use super::summary::Tally;
use crate::boundary::engine::Logprob;
use crate::job::error::JobError;

/// Maximum time that a finished line waits for a write: each write is synced.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Lines and partial scores that are not written.
pub(super) struct Lines<'j> {
    pub(super) job: &'j mut Job,
    /// Scores of partly scored items; the outer `None` is a missing score, the inner one a score
    /// that is not finite.
    begun: HashMap<usize, Vec<Option<Option<Score>>>>,
    /// Finished lines that are not written, by item.
    ready: HashMap<usize, Vec<u8>>,
    /// First item that is not written, if lines must be written in order.
    next: usize,
    written: Instant,
}

impl<'j> Lines<'j> {
    pub(super) fn new(job: &'j mut Job) -> Lines<'j> {
        let items = job.items.iter().zip(&job.lines).enumerate();
        let errors = items.filter_map(|(index, (item, line))| match item {
            Item::Error(error) if line.is_none() => Some((index, error_line(error))),
            _ => None,
        });
        let ready = errors.collect();
        Lines { job, begun: HashMap::new(), ready, next: 0, written: Instant::now() }
    }

    /// Adds the log-probabilities of a continuation.
    pub(super) fn take(&mut self, Ticket { item, continuation }: Ticket, found: &[Logprob]) {
        let count = self.job.question(item).continuations.len();
        let score = Score::new(found, self.job.shown);
        let scores = self.begun.entry(item).or_insert_with(|| vec![None; count]);
        scores[continuation] = Some(score);
        if scores.iter().any(Option::is_none) {
            return;
        }
        let scores: Vec<Option<Score>> =
            self.begun.remove(&item).unwrap_or_default().into_iter().flatten().collect();
        let line = match scores.iter().position(Option::is_none) {
            Some(continuation) => not_finite_line(self.job.question(item), continuation),
            None => {
                let scores: Vec<Score> = scores.into_iter().flatten().collect();
                self.job.tallies[item] = Tally::of(&scores);
                let (shown, system) = (self.job.shown, &self.job.system_fingerprint);
                score_line(self.job.question(item), scores, shown, system)
            }
        };
        self.ready.insert(item, line);
    }

    pub(super) fn write_in_time(&mut self) -> Result<(), JobError> {
        let is_due = !self.ready.is_empty() && self.written.elapsed() >= WRITE_EVERY;
        if is_due { self.write() } else { Ok(()) }
    }

    /// Writes every finished line; to a stream only those before the first unfinished one.
    pub(super) fn write(&mut self) -> Result<(), JobError> {
        let mut ready: Vec<usize> = self.ready.keys().copied().collect();
        ready.sort_unstable();
        if !self.job.sink.is_log() {
            let in_order = ready.iter().zip(self.next..).take_while(|(item, next)| **item == *next);
            let count = in_order.count();
            ready.truncate(count);
            self.next += count;
        }
        let (mut text, mut ranges) = (Vec::new(), Vec::new());
        for item in ready {
            let start = text.len() as u64;
            text.extend(self.ready.remove(&item).unwrap_or_default());
            ranges.push((item, start..text.len() as u64));
        }
        let whole = self.job.sink.append(&text)?;
        for (item, range) in ranges {
            self.job.lines[item] = Some(whole.start + range.start..whole.start + range.end);
        }
        self.written = Instant::now();
        Ok(())
    }
}
