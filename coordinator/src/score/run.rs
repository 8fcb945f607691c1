//! Execution of a scoring job, from the first sequence to the last line.

use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::item::Question;
use super::job::{Job, Ticket};
use super::lines::Lines;
use super::summary::{Summary, Tally};
use crate::boundary::engine::EngineError;
use crate::boundary::serving::{
    Event, Listener, Listening, Logprob, Sampling, Serving, Submission,
};
use crate::job::error::JobError;
use crate::job::reading::Reading;

/// Interval between checks for an interruption.
const TICK: Duration = Duration::from_millis(100);

/// Sequences submitted at a time, for each slot of the engine: enough that no slot is ever empty,
/// even while some wait for prefixes that others compute.
const GOING_PER_SLOT: usize = 4;

/// Result of a sequence: its log-probabilities and the number of its tokens found in caches, or an
/// error message.
type Told = (Ticket, Result<(Vec<Logprob>, u32), String>);

impl Job {
    /// Runs what is left to do. `engine` may be `None` only if [`Job::needs_engine`] returns false.
    ///
    /// # Errors
    /// Returns an error if the engine fails or the output cannot be written. In both cases finished
    /// lines are in the output.
    pub fn run(
        mut self,
        engine: Option<&dyn Serving>,
        progress: &mut Reading,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Summary, JobError> {
        let begun = Instant::now();
        let mut rows = Rows::default();
        let ran = self.score(engine, progress, interrupted, &mut rows);
        progress.end();
        // After a failed write the output cannot be sorted; it stays a log, which can still be
        // resumed.
        if !matches!(ran, Err(JobError::OutputWrite { .. } | JobError::BrokenPipe)) {
            let lines: Vec<Range<u64>> = self.lines.iter().flatten().cloned().collect();
            self.sink.settle(&lines, matches!(ran, Ok(false)))?;
        }
        let failed = |(line, tally): (&Option<Range<u64>>, &Tally)| {
            line.is_some() && tally.continuations == 0
        };
        Ok(Summary {
            failed: self.lines.iter().zip(&self.tallies).filter(|both| failed(*both)).count(),
            not_run: self.lines.iter().filter(|line| line.is_none()).count(),
            computed_tokens: rows.computed,
            cached_tokens: rows.cached,
            seconds: begun.elapsed().as_secs_f64(),
            interrupted: ran?,
            resumable: self.sink.is_log(),
            ..Summary::sums(&self.tallies, self.windows)
        })
    }

    /// Scores all pending questions; returns true if the run was interrupted.
    fn score(
        &mut self,
        engine: Option<&dyn Serving>,
        progress: &mut Reading,
        interrupted: &dyn Fn() -> bool,
        rows: &mut Rows,
    ) -> Result<bool, JobError> {
        let tickets: Vec<Ticket> = self
            .pending()
            .flat_map(|(item, question)| {
                let places = 0..question.continuations.len();
                places.map(move |continuation| Ticket { item, continuation })
            })
            .collect();
        let mut lines = Lines::new(self);
        lines.write()?;
        let Some(engine) = engine else {
            assert!(tickets.is_empty(), "a job with questions left was run without an engine");
            return Ok(false);
        };
        let most = engine.limits().slots as usize * GOING_PER_SLOT;
        let (sender, told) = channel();
        let (mut next, mut done) = (tickets.iter(), 0);
        let mut going = 0;
        while done < tickets.len() {
            if interrupted() {
                lines.write()?;
                return Ok(true);
            }
            for ticket in next.by_ref().take(most - going) {
                submit(lines.job, engine, *ticket, &sender)?;
                going += 1;
            }
            let first = match told.recv_timeout(TICK) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            };
            for (ticket, found) in first.into_iter().chain(told.try_iter()) {
                let (found, cached) = match found {
                    Ok(found) => found,
                    Err(sentence) => {
                        lines.write()?;
                        return Err(JobError::Engine(EngineError::Failed(sentence)));
                    }
                };
                let question = lines.job.question(ticket.item);
                rows.add(rows_of(question, ticket.continuation), cached.into());
                lines.take(ticket, &found);
                (going, done) = (going - 1, done + 1);
            }
            progress.update(done, tickets.len());
            lines.write_in_time()?;
        }
        lines.write()?;
        Ok(false)
    }
}

/// Numbers of rows of prompts and continuations.
#[derive(Debug, Default)]
struct Rows {
    computed: u64,
    cached: u64,
}

impl Rows {
    fn add(&mut self, all: u64, cached: u64) {
        self.computed += all.saturating_sub(cached);
        self.cached += cached;
    }
}

/// Returns the number of rows of a sequence: its last token is scored, but not computed.
fn rows_of(question: &Question, continuation: usize) -> u64 {
    (question.prompt.len() + question.continuations[continuation].len() - 1) as u64
}

/// Submits a continuation.
fn submit(
    job: &Job,
    engine: &dyn Serving,
    ticket: Ticket,
    sender: &Sender<Told>,
) -> Result<(), JobError> {
    let question = job.question(ticket.item);
    let continuation = &question.continuations[ticket.continuation];
    let submission = Submission {
        prompt: [question.prompt.as_slice(), continuation].concat(),
        max_new: 0,
        sampling: Sampling::GREEDY,
        seed: 0,
        id_hash: 0,
        ignore_eos: true,
        logprobs: 0,
        prompt_logprobs: job.shown.logprobs(),
        prompt_logprobs_from: question.prompt.len() as u32,
        grammar: None,
    };
    let listener = Teller { ticket, found: None, sender: Some(sender.clone()) };
    let taken = engine.submit(submission, Box::new(listener));
    let ended = |_| JobError::Engine(EngineError::Failed("The engine has stopped.".to_owned()));
    taken.map(|_| ()).map_err(ended)
}

/// Forwards the result of a sequence from the engine's thread.
struct Teller {
    ticket: Ticket,
    /// Log-probabilities, and number of tokens found in caches.
    found: Option<(Vec<Logprob>, u32)>,
    /// Sender of the result; `None` once it is sent.
    sender: Option<Sender<Told>>,
}

impl Drop for Teller {
    /// Sends an error if no result was sent, as when the engine panicked, so that no caller waits
    /// for it.
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            // The receiver is gone if scoring ended first.
            let _ = sender.send((self.ticket, Err("The engine has stopped.".to_owned())));
        }
    }
}

impl Listener for Teller {
    fn tell(&mut self, event: Event) -> Listening {
        let found = match event {
            Event::Prompt { cached_tokens, logprobs, .. } => {
                self.found = Some((logprobs, cached_tokens));
                return Listening::Yes;
            }
            Event::Token { .. } => return Listening::Yes,
            Event::Finished(_) => {
                let missing =
                    || "The engine finished a sequence without log-probabilities.".to_owned();
                self.found.take().ok_or_else(missing)
            }
            Event::Failed(sentence) => Err(sentence),
        };
        match self.sender.take().map(|sender| sender.send((self.ticket, found))) {
            Some(Ok(())) => Listening::Yes,
            _ => Listening::No,
        }
    }
}
