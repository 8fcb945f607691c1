//! A batch job on the engine of a server: its caches are in pages, so beginnings of prompts can be
//! stored and found. Answers are those of the job's own engine.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use grammar::Grammar;

use super::ServingEngine;
use crate::boundary::engine::{
    Engine, EngineError, Finish, Generated, Logprob, Observer, Sequence, Verdict,
};
use crate::boundary::serving::{
    Event, Listener, Listening, PromptsGoing, Serving, Status, Submission, SubmissionId,
};

/// Between two looks at whether the job is to end.
const SLICE: Duration = Duration::from_millis(100);
/// Sequences that wait for each that is computed: enough to find which of them begin alike.
const WAITING: usize = 2;

/// See the module header.
pub struct ServedJob {
    engine: ServingEngine,
    /// Of the sequences, by their numbers from 1.
    grammars: Vec<Arc<Grammar>>,
    interrupt: Box<dyn Fn() -> bool>,
}

impl fmt::Debug for ServedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedJob").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// A sequence that the engine has.
struct Going {
    id: SubmissionId,
    tokens: Vec<u32>,
    logprobs: Vec<Logprob>,
}

/// Tells a job's thread.
struct Telling {
    sequence: usize,
    events: Sender<(usize, Event)>,
}

impl Listener for Telling {
    fn tell(&mut self, event: Event) -> Listening {
        match self.events.send((self.sequence, event)) {
            Ok(()) => Listening::Yes,
            Err(_) => Listening::No,
        }
    }
}

impl ServedJob {
    /// Sequences follow these grammars.
    pub fn new(
        engine: ServingEngine,
        grammars: Vec<Grammar>,
        interrupt: Box<dyn Fn() -> bool>,
    ) -> ServedJob {
        let grammars = grammars.into_iter().map(Arc::new).collect();
        ServedJob { engine, grammars, interrupt }
    }

    /// What the engine has done.
    pub fn status(&self) -> Status {
        self.engine.status()
    }

    fn submit(
        &self,
        (index, sequence): (usize, &Sequence<'_>),
        events: &Sender<(usize, Event)>,
    ) -> Result<Going, EngineError> {
        let number = (sequence.grammar as usize).checked_sub(1);
        let submission = Submission {
            prompt: sequence.prompt.to_vec(),
            max_new: sequence.max_new,
            sampling: sequence.sampling,
            seed: sequence.seed,
            id_hash: sequence.id_hash,
            ignore_eos: sequence.ignore_eos,
            logprobs: sequence.logprobs,
            prompt_logprobs: 0,
            prompt_logprobs_from: 1,
            grammar: number.and_then(|number| self.grammars.get(number).cloned()),
        };
        let telling = Telling { sequence: index, events: events.clone() };
        let id = self.engine.submit(submission, Box::new(telling));
        let id = id.map_err(|error| EngineError::Failed(error.to_string()))?;
        Ok(Going { id, tokens: Vec::new(), logprobs: Vec::new() })
    }

    /// The next event; tells how prompts get on while there is none.
    fn next(
        &self,
        events: &Receiver<(usize, Event)>,
        observer: &mut dyn Observer,
    ) -> Result<(usize, Event), EngineError> {
        loop {
            if (self.interrupt)() {
                return Err(EngineError::Interrupted);
            }
            match events.recv_timeout(SLICE) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Timeout) => {
                    let PromptsGoing { tokens, computed, .. } = self.status().prompts_going;
                    if tokens > 0 {
                        observer.prefilled(computed as f64 / tokens as f64);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(EngineError::Failed("the engine has ended".to_owned()));
                }
            }
        }
    }
}

impl Engine for ServedJob {
    fn run(
        &mut self,
        sequences: &[Sequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let (sender, events) = channel();
        let most = (1 + WAITING) * self.engine.limits().slots as usize;
        let mut going: Vec<Option<Going>> = sequences.iter().map(|_| None).collect();
        let mut waiting = sequences.iter().enumerate();
        let (mut submitted, mut ended) = (0, 0);
        while ended < sequences.len() {
            while submitted - ended < most {
                let Some((index, sequence)) = waiting.next() else { break };
                going[index] = Some(self.submit((index, sequence), &sender)?);
                submitted += 1;
            }
            let (index, event) = self.next(&events, observer)?;
            let Some(of_it) = &mut going[index] else { continue };
            let finish = match event {
                Event::Prompt { .. } => None,
                Event::Token { token, logprobs } => {
                    of_it.tokens.push(token);
                    of_it.logprobs.extend(logprobs);
                    let stops = observer.token(index, token) == Verdict::Stop;
                    stops.then(|| self.engine.cancel(of_it.id)).map(|()| Finish::Stop)
                }
                Event::Finished(finish) => Some(finish),
                Event::Failed(sentence) => return Err(EngineError::Failed(sentence)),
            };
            let Some(finish) = finish else { continue };
            let Some(Going { tokens, logprobs, .. }) = going[index].take() else { continue };
            ended += 1;
            if observer.finished(index, Generated { tokens, logprobs, finish }).is_break() {
                return Err(EngineError::Interrupted);
            }
        }
        Ok(())
    }
}
