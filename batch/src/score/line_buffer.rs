//! Buffer of a scoring job's lines on their way into the output. [`ScoreLineBuffer`] keeps scores
//! until all continuations of an item are scored and writes lines at intervals.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use engine_api::event::Logprob;

use super::job::{ContinuationId, ScoreJob};
use super::output::{Score, error_line, not_finite_line, score_line};
use super::question::ScoreInputLine;
use super::summary::ScoreTotals;
use crate::error::JobError;

/// Maximum time that a finished line waits for a write: each write is synced.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Lines and partial scores that are not written.
pub(super) struct ScoreLineBuffer<'j> {
    pub(super) job: &'j mut ScoreJob,
    /// Scores of partly scored items; the outer `None` is a missing score, the inner one a score
    /// that is not finite.
    partial: HashMap<usize, Vec<Option<Option<Score>>>>,
    /// Finished lines that are not written, by item.
    ready: HashMap<usize, Vec<u8>>,
    /// First item that is not written, if lines must be written in order.
    next_item: usize,
    last_write: Instant,
}

impl<'j> ScoreLineBuffer<'j> {
    pub(super) fn new(job: &'j mut ScoreJob) -> ScoreLineBuffer<'j> {
        let items = job.items.iter().zip(&job.lines).enumerate();
        let errors = items.filter_map(|(index, (item, line))| match item {
            ScoreInputLine::Error(error) if line.is_none() => Some((index, error_line(error))),
            _ => None,
        });
        let ready = errors.collect();
        ScoreLineBuffer {
            job,
            partial: HashMap::new(),
            ready,
            next_item: 0,
            last_write: Instant::now(),
        }
    }

    /// Adds the log-probabilities of a continuation.
    pub(super) fn add(
        &mut self,
        ContinuationId { item, continuation }: ContinuationId,
        found: &[Logprob],
    ) {
        let count = self.job.question(item).continuations.len();
        let score = Score::new(found, self.job.details);
        let scores = self.partial.entry(item).or_insert_with(|| vec![None; count]);
        scores[continuation] = Some(score);
        if scores.iter().any(Option::is_none) {
            return;
        }
        let scores: Vec<Option<Score>> =
            self.partial.remove(&item).unwrap_or_default().into_iter().flatten().collect();
        let line = match scores.iter().position(Option::is_none) {
            Some(continuation) => not_finite_line(self.job.question(item), continuation),
            None => {
                let scores: Vec<Score> = scores.into_iter().flatten().collect();
                self.job.totals[item] = ScoreTotals::from_scores(&scores);
                let (shown, system) = (self.job.details, &self.job.system_fingerprint);
                score_line(self.job.question(item), scores, shown, system)
            }
        };
        self.ready.insert(item, line);
    }

    pub(super) fn write_if_due(&mut self) -> Result<(), JobError> {
        let is_due = !self.ready.is_empty() && self.last_write.elapsed() >= WRITE_EVERY;
        if is_due { self.write() } else { Ok(()) }
    }

    /// Writes every finished line; to a stream only those before the first unfinished one.
    pub(super) fn write(&mut self) -> Result<(), JobError> {
        let mut ready: Vec<usize> = self.ready.keys().copied().collect();
        ready.sort_unstable();
        if !self.job.sink.is_log() {
            let in_order =
                ready.iter().zip(self.next_item..).take_while(|(item, next)| **item == *next);
            let count = in_order.count();
            ready.truncate(count);
            self.next_item += count;
        }
        let (mut text, mut ranges) = (Vec::new(), Vec::new());
        for item in ready {
            let start = text.len() as u64;
            text.extend(self.ready.remove(&item).unwrap_or_default());
            ranges.push((item, start..text.len() as u64));
        }
        let appended = self.job.sink.append(&text)?;
        for (item, range) in ranges {
            self.job.lines[item] = Some(appended.start + range.start..appended.start + range.end);
        }
        self.last_write = Instant::now();
        Ok(())
    }
}
