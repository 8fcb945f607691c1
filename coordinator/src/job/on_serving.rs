//! Adapter that runs a job on a server's engine, which supports log-probabilities of prompt tokens;
//! the batch engine does not.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use grammar::Grammar;

use crate::boundary::engine::{
    Engine, EngineError, Finish, Generated, Observer, Sequence, Verdict,
};
use crate::boundary::serving::{
    Event, Listener, Listening, PreparedGrammar, PromptsGoing, Serving, Submission, SubmissionId,
};

/// Interval between checks for an interruption.
const TICK: Duration = Duration::from_millis(100);

/// Sequences submitted at a time, for each slot of the engine: enough that no slot is ever empty.
const GOING_PER_SLOT: usize = 4;

/// A server's engine as the [`Engine`] of a job.
pub struct OnServing<'e> {
    serving: &'e dyn Serving,
    /// Grammars of the sequences, which number them from 1.
    grammars: Vec<Arc<Grammar>>,
    /// Prepared grammars that submitted sequences follow. Each is prepared when its first sequence
    /// is submitted.
    prepared: Vec<Weak<PreparedGrammar>>,
    interrupted: &'e dyn Fn() -> bool,
}

impl std::fmt::Debug for OnServing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnServing").field("serving", &self.serving).finish_non_exhaustive()
    }
}

impl<'e> OnServing<'e> {
    /// Wraps `serving`; `grammars` are those that sequences refer to.
    pub fn new(
        serving: &'e dyn Serving,
        grammars: Vec<Arc<Grammar>>,
        interrupted: &'e dyn Fn() -> bool,
    ) -> OnServing<'e> {
        let prepared = grammars.iter().map(|_| Weak::new()).collect();
        OnServing { serving, grammars, prepared, interrupted }
    }

    /// Returns the grammar with this index, prepared once for all sequences that follow it.
    fn prepared(&mut self, grammar: usize) -> Arc<PreparedGrammar> {
        if let Some(known) = self.prepared[grammar].upgrade() {
            return known;
        }
        let prepared = Arc::new(self.serving.prepare(Arc::clone(&self.grammars[grammar])));
        self.prepared[grammar] = Arc::downgrade(&prepared);
        prepared
    }

    /// Submits a sequence whose events are sent through `sender`.
    fn submit(
        &mut self,
        index: usize,
        sequence: &Sequence<'_>,
        sender: &Sender<Told>,
    ) -> Result<SubmissionId, EngineError> {
        let grammar = (sequence.grammar as usize).checked_sub(1);
        let grammar = grammar.map(|grammar| self.prepared(grammar));
        let submission = Submission {
            prompt: sequence.prompt.to_vec(),
            max_new: sequence.max_new,
            sampling: sequence.sampling,
            seed: sequence.seed,
            id_hash: sequence.id_hash,
            ignore_eos: sequence.ignore_eos,
            logprobs: sequence.logprobs,
            prompt_logprobs: sequence.prompt_logprobs,
            prompt_logprobs_from: 1,
            grammar,
        };
        let listener = Teller { index, sender: sender.clone(), is_over: false };
        self.serving.submit(submission, Box::new(listener)).map_err(|_| gone())
    }
}

fn gone() -> EngineError {
    EngineError::Failed("The engine has stopped.".to_owned())
}

/// Index and event of a sequence; `None` if the engine dropped its listener.
type Told = (usize, Option<Event>);

/// Forwards the events of a sequence from the engine's thread.
struct Teller {
    index: usize,
    sender: Sender<Told>,
    is_over: bool,
}

impl Listener for Teller {
    fn tell(&mut self, event: Event) -> Listening {
        self.is_over = matches!(event, Event::Finished(_) | Event::Failed(_));
        match self.sender.send((self.index, Some(event))) {
            Ok(()) => Listening::Yes,
            Err(_) => Listening::No,
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if !self.is_over {
            // The receiver is gone if the job ended first.
            let _ = self.sender.send((self.index, None));
        }
    }
}

/// A submitted sequence that has not ended.
struct Going {
    id: SubmissionId,
    made: Generated,
}

impl Engine for OnServing<'_> {
    fn run(
        &mut self,
        sequences: &[Sequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let most = self.serving.limits().slots as usize * GOING_PER_SLOT;
        let (sender, told) = channel();
        let mut going: Vec<Option<Going>> = sequences.iter().map(|_| None).collect();
        let (mut next, mut under_way, mut ended) = (0, 0, 0);
        while ended < sequences.len() {
            if (self.interrupted)() {
                return Err(EngineError::Interrupted);
            }
            while next < sequences.len() && under_way < most {
                let id = self.submit(next, &sequences[next], &sender)?;
                let made = Generated {
                    tokens: Vec::new(),
                    logprobs: Vec::new(),
                    prompt_logprobs: Vec::new(),
                    finish: Finish::Length,
                };
                going[next] = Some(Going { id, made });
                (next, under_way) = (next + 1, under_way + 1);
            }
            let first = match told.recv_timeout(TICK) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => {
                    let PromptsGoing { tokens, computed, .. } = self.serving.status().prompts_going;
                    if tokens > 0 {
                        observer.prefilled(computed, tokens);
                    }
                    None
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            };
            for (index, event) in first.into_iter().chain(told.try_iter()) {
                // Events of a cancelled sequence may still arrive.
                let Some(sequence) = &mut going[index] else { continue };
                let Some(finish) = hear(index, sequence, event, observer)? else { continue };
                if finish == Ended::CalledOff {
                    self.serving.cancel(sequence.id);
                }
                let made = going[index].take().map(|going| going.made).ok_or_else(gone)?;
                (under_way, ended) = (under_way - 1, ended + 1);
                if observer.finished(index, made).is_break() {
                    return Err(EngineError::Interrupted);
                }
            }
        }
        Ok(())
    }
}

/// Way in which a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    ByItself,
    /// The observer wants no more tokens; the engine does not know yet.
    CalledOff,
}

/// Applies an event; returns the way in which the sequence ended, if it did.
fn hear(
    index: usize,
    sequence: &mut Going,
    event: Option<Event>,
    observer: &mut dyn Observer,
) -> Result<Option<Ended>, EngineError> {
    let made = &mut sequence.made;
    match event.ok_or_else(gone)? {
        Event::Prompt { logprobs, .. } => made.prompt_logprobs = logprobs,
        Event::Token { token, logprobs } => {
            made.tokens.push(token);
            made.logprobs.extend(logprobs);
            if observer.token(index, token) == Verdict::Stop {
                made.finish = Finish::Stop;
                return Ok(Some(Ended::CalledOff));
            }
        }
        Event::Finished(finish) => {
            made.finish = finish;
            return Ok(Some(Ended::ByItself));
        }
        Event::Failed(sentence) => return Err(EngineError::Failed(sentence)),
    }
    Ok(None)
}
