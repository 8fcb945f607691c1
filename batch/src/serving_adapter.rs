//! Adapter that runs a job on a server's engine, which supports log-probabilities of prompt tokens,
//! stored prompts and drafted tokens; the engine of groups does not.

use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine_api::batch::{BatchEngine, BatchRequests, EngineError};
use engine_api::event::{BatchSink, EngineEvent, EventSink};
use engine_api::request::{AnswerGrammar, GenerationRequest, PreparedGrammar};
use engine_api::serving::{Engine, GenerationId, PromptProgress};
use grammar::Grammar;

/// Interval between checks for an interruption.
const TICK: Duration = Duration::from_millis(100);

/// Sequences submitted at a time, for each slot of the engine: enough that no slot is ever empty.
const IN_FLIGHT_PER_SLOT: usize = 4;

/// A server's engine as the [`BatchEngine`] of a job.
pub struct ServingAdapter<'e> {
    serving: &'e dyn Engine,
    /// Grammars of the sequences, which number them from 1.
    grammars: Vec<Arc<Grammar>>,
    /// Prepared grammars that submitted sequences follow. Each is prepared when its first sequence
    /// is submitted.
    prepared_grammars: Vec<Weak<PreparedGrammar>>,
    interrupted: &'e dyn Fn() -> bool,
}

impl std::fmt::Debug for ServingAdapter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingAdapter").field("serving", &self.serving).finish_non_exhaustive()
    }
}

impl<'e> ServingAdapter<'e> {
    /// Wraps `serving`; `grammars` are those that sequences refer to.
    pub fn new(
        serving: &'e dyn Engine,
        grammars: Vec<Arc<Grammar>>,
        interrupted: &'e dyn Fn() -> bool,
    ) -> ServingAdapter<'e> {
        let prepared_grammars = grammars.iter().map(|_| Weak::new()).collect();
        ServingAdapter { serving, grammars, prepared_grammars, interrupted }
    }

    /// Returns the grammar with this index, prepared once for all sequences that follow it.
    fn prepare_grammar(&mut self, grammar: usize) -> Arc<PreparedGrammar> {
        if let Some(known) = self.prepared_grammars[grammar].upgrade() {
            return known;
        }
        let prepared = Arc::new(self.serving.prepare(Arc::clone(&self.grammars[grammar])));
        self.prepared_grammars[grammar] = Arc::downgrade(&prepared);
        prepared
    }

    /// Submits a sequence whose events are sent through `sender`.
    fn submit(
        &mut self,
        index: usize,
        mut request: GenerationRequest,
        sender: &Sender<SequenceEvent>,
    ) -> Result<GenerationId, EngineError> {
        if let AnswerGrammar::Number(number) = request.grammar {
            request.grammar = AnswerGrammar::Prepared(self.prepare_grammar(number as usize - 1));
        }
        let listener = EventSender { index, sender: sender.clone(), has_ended: false };
        self.serving.submit(request, Box::new(listener)).map_err(|_| engine_stopped())
    }
}

fn engine_stopped() -> EngineError {
    EngineError::Failed("The engine has stopped.".to_owned())
}

/// Index and event of a sequence; `None` if the engine dropped its listener.
type SequenceEvent = (usize, Option<EngineEvent>);

/// Forwards the events of a sequence from the engine's thread.
struct EventSender {
    index: usize,
    sender: Sender<SequenceEvent>,
    has_ended: bool,
}

impl EventSink for EventSender {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        self.has_ended = matches!(event, EngineEvent::Finished(_) | EngineEvent::Failed(_));
        match self.sender.send((self.index, Some(event))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        if !self.has_ended {
            // The receiver is gone if the job ended first.
            let _ = self.sender.send((self.index, None));
        }
    }
}

impl BatchEngine for ServingAdapter<'_> {
    fn run(
        &mut self,
        requests: &dyn BatchRequests,
        sink: &mut dyn BatchSink,
    ) -> Result<(), EngineError> {
        let count = requests.count();
        let max_in_flight = self.serving.limits().slots as usize * IN_FLIGHT_PER_SLOT;
        let (sender, events) = channel();
        // Ids of the requests that were submitted and have not ended.
        let mut submitted: Vec<Option<GenerationId>> = vec![None; count];
        let (mut next, mut in_flight, mut ended) = (0, 0, 0);
        while ended < count {
            if (self.interrupted)() {
                return Err(EngineError::Interrupted);
            }
            while next < count && in_flight < max_in_flight {
                submitted[next] = Some(self.submit(next, requests.request(next), &sender)?);
                (next, in_flight) = (next + 1, in_flight + 1);
            }
            let first = match events.recv_timeout(TICK) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => {
                    let PromptProgress { tokens, computed_tokens, .. } =
                        self.serving.status().prompt_progress;
                    if tokens > 0 {
                        sink.on_prefill_progress(computed_tokens, tokens);
                    }
                    None
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept"),
            };
            for (index, event) in first.into_iter().chain(events.try_iter()) {
                // Events of a cancelled sequence may still arrive.
                let Some(id) = submitted[index] else { continue };
                let event = event.ok_or_else(engine_stopped)?;
                if let EngineEvent::Failed(sentence) = event {
                    return Err(EngineError::Failed(sentence));
                }
                let is_last = matches!(event, EngineEvent::Finished(_));
                let is_stopped = sink.on_event(index, event).is_break();
                if is_stopped && !is_last {
                    self.serving.cancel(id);
                }
                if is_stopped || is_last {
                    submitted[index] = None;
                    (in_flight, ended) = (in_flight - 1, ended + 1);
                }
                if sink.has_failed() {
                    return Err(EngineError::Interrupted);
                }
            }
        }
        Ok(())
    }
}
