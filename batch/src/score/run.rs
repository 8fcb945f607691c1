//! Execution of a scoring job, from the first sequence to the last line.

use std::ops::{ControlFlow, Range};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine_api::batch::EngineError;
use engine_api::serving::{Engine, EngineEvent, EventSink, GenerationRequest, Logprob};

use super::job::{ContinuationId, ScoreJob};
use super::line_buffer::ScoreLineBuffer;
use super::question::ScoreQuestion;
use super::summary::{ScoreSummary, ScoreTotals};
use crate::error::JobError;
use crate::progress_counter::ProgressCounter;

/// Interval between checks for an interruption.
const TICK: Duration = Duration::from_millis(100);

/// Sequences submitted at a time, for each slot of the engine: enough that no slot is ever empty,
/// even while some wait for prefixes that others compute.
const IN_FLIGHT_PER_SLOT: usize = 4;

/// Result of a sequence: its log-probabilities and the number of its tokens found in caches, or an
/// error message.
type SequenceResult = (ContinuationId, Result<(Vec<Logprob>, u32), String>);

impl ScoreJob {
    /// Runs what is left to do. `engine` may be `None` only if [`ScoreJob::needs_engine`] returns
    /// false.
    ///
    /// # Errors
    /// Returns an error if the engine fails or the output cannot be written. In both cases finished
    /// lines are in the output.
    pub fn run(
        mut self,
        engine: Option<&dyn Engine>,
        progress: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<ScoreSummary, JobError> {
        let started = Instant::now();
        let mut rows = RowCounts::default();
        let outcome = self.score(engine, progress, interrupted, &mut rows);
        progress.end();
        // After a failed write the output cannot be sorted; it stays a log, which can still be
        // resumed.
        if !matches!(outcome, Err(JobError::OutputWrite { .. } | JobError::BrokenPipe)) {
            let lines: Vec<Range<u64>> = self.lines.iter().flatten().cloned().collect();
            self.sink.finalize(&lines, matches!(outcome, Ok(false)))?;
        }
        let failed = |(line, tally): (&Option<Range<u64>>, &ScoreTotals)| {
            line.is_some() && tally.continuations == 0
        };
        Ok(ScoreSummary {
            failed: self.lines.iter().zip(&self.totals).filter(|both| failed(*both)).count(),
            not_run: self.lines.iter().filter(|line| line.is_none()).count(),
            computed_tokens: rows.computed,
            cached_tokens: rows.cached,
            seconds: started.elapsed().as_secs_f64(),
            interrupted: outcome?,
            resumable: self.sink.is_log(),
            ..ScoreSummary::from_totals(&self.totals, self.windows)
        })
    }

    /// Scores all pending questions; returns true if the run was interrupted.
    fn score(
        &mut self,
        engine: Option<&dyn Engine>,
        progress: &mut ProgressCounter,
        interrupted: &dyn Fn() -> bool,
        rows: &mut RowCounts,
    ) -> Result<bool, JobError> {
        let pending: Vec<ContinuationId> = self
            .pending()
            .flat_map(|(item, question)| {
                let places = 0..question.continuations.len();
                places.map(move |continuation| ContinuationId { item, continuation })
            })
            .collect();
        let mut lines = ScoreLineBuffer::new(self);
        lines.write()?;
        let Some(engine) = engine else {
            assert!(pending.is_empty(), "a job with questions left was run without an engine");
            return Ok(false);
        };
        let max_in_flight = engine.limits().slots as usize * IN_FLIGHT_PER_SLOT;
        let (sender, results) = channel();
        let (mut next, mut done) = (pending.iter(), 0);
        let mut in_flight = 0;
        while done < pending.len() {
            if interrupted() {
                lines.write()?;
                return Ok(true);
            }
            for ticket in next.by_ref().take(max_in_flight - in_flight) {
                submit(lines.job, engine, *ticket, &sender)?;
                in_flight += 1;
            }
            let first = match results.recv_timeout(TICK) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            };
            for (ticket, found) in first.into_iter().chain(results.try_iter()) {
                let (found, cached) = match found {
                    Ok(found) => found,
                    Err(sentence) => {
                        lines.write()?;
                        return Err(JobError::Engine(EngineError::Failed(sentence)));
                    }
                };
                let question = lines.job.question(ticket.item);
                rows.add(row_count(question, ticket.continuation), cached.into());
                lines.add(ticket, &found);
                (in_flight, done) = (in_flight - 1, done + 1);
            }
            progress.update(done, pending.len());
            lines.write_if_due()?;
        }
        lines.write()?;
        Ok(false)
    }
}

/// Numbers of rows of prompts and continuations.
#[derive(Debug, Default)]
struct RowCounts {
    computed: u64,
    cached: u64,
}

impl RowCounts {
    fn add(&mut self, all: u64, cached: u64) {
        self.computed += all.saturating_sub(cached);
        self.cached += cached;
    }
}

/// Returns the number of rows of a sequence: its last token is scored, but not computed.
fn row_count(question: &ScoreQuestion, continuation: usize) -> u64 {
    (question.prompt.len() + question.continuations[continuation].len() - 1) as u64
}

/// Submits a continuation.
fn submit(
    job: &ScoreJob,
    engine: &dyn Engine,
    id: ContinuationId,
    sender: &Sender<SequenceResult>,
) -> Result<(), JobError> {
    let question = job.question(id.item);
    let continuation = &question.continuations[id.continuation];
    let tokens = [question.prompt.as_slice(), continuation].concat();
    let submission = GenerationRequest {
        any_logits: false,
        prompt_logprobs: job.details.logprobs(),
        prompt_logprobs_from: question.prompt.len() as u32,
        ..GenerationRequest::greedy(tokens, 0)
    };
    let listener = ResultSender { id, found: None, sender: Some(sender.clone()) };
    let taken = engine.submit(submission, Box::new(listener));
    let ended = |_| JobError::Engine(EngineError::Failed("The engine has stopped.".to_owned()));
    taken.map(|_| ()).map_err(ended)
}

/// Forwards the result of a sequence from the engine's thread.
struct ResultSender {
    id: ContinuationId,
    /// Log-probabilities, and number of tokens found in caches.
    found: Option<(Vec<Logprob>, u32)>,
    /// Sender of the result; `None` once it is sent.
    sender: Option<Sender<SequenceResult>>,
}

impl Drop for ResultSender {
    /// Sends an error if no result was sent, as when the engine panicked, so that no caller waits
    /// for it.
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            // The receiver is gone if scoring ended first.
            let _ = sender.send((self.id, Err("The engine has stopped.".to_owned())));
        }
    }
}

impl EventSink for ResultSender {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        let found = match event {
            EngineEvent::Prompt { cached_tokens, logprobs, .. } => {
                self.found = Some((logprobs, cached_tokens));
                return ControlFlow::Continue(());
            }
            EngineEvent::Token { .. } => return ControlFlow::Continue(()),
            EngineEvent::Finished(_) => {
                let missing =
                    || "The engine finished a sequence without log-probabilities.".to_owned();
                self.found.take().ok_or_else(missing)
            }
            EngineEvent::Failed(sentence) => Err(sentence),
        };
        match self.sender.take().map(|sender| sender.send((self.id, found))) {
            Some(Ok(())) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}
