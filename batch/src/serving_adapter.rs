//! Adapter that runs a job on a server's engine, which supports log-probabilities of prompt tokens,
//! stored prompts and drafted tokens; the engine of groups does not.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine_api::batch::{BatchEngine, BatchRequests, EngineError};
use engine_api::event::{BatchSink, EngineEvent, EventSink};
use engine_api::request::{AnswerGrammar, GenerationRequest, PreparedGrammar, Priority};
use engine_api::serving::{Engine, GenerationId, PromptProgress};
use grammar::Grammar;

use super::answer_size::sequence_bytes;

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
    priority: Priority,
    /// Maximum memory for the answers of submitted sequences, in bytes; a sequence that is alone
    /// may exceed it.
    max_answer_bytes: u64,
    interrupted: &'e dyn Fn() -> bool,
}

/// Sequences that were submitted and have not ended, which are cancelled when this is dropped.
struct Submitted<'e> {
    serving: &'e dyn Engine,
    /// Number of each sequence in the engine.
    ids: Vec<Option<GenerationId>>,
    /// Number of sequences.
    count: usize,
    /// Maximum memory for each answer, in bytes.
    bytes: HashMap<usize, u64>,
    total_bytes: u64,
}

impl Submitted<'_> {
    fn add(&mut self, index: usize, id: GenerationId, bytes: u64) {
        self.ids[index] = Some(id);
        self.bytes.insert(index, bytes);
        (self.count, self.total_bytes) = (self.count + 1, self.total_bytes.saturating_add(bytes));
    }

    fn remove(&mut self, index: usize) {
        self.ids[index] = None;
        self.count -= 1;
        let bytes = self.bytes.remove(&index).unwrap_or(0);
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
    }
}

impl Drop for Submitted<'_> {
    fn drop(&mut self) {
        self.ids.iter().flatten().for_each(|id| self.serving.cancel(*id));
    }
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
        ServingAdapter {
            serving,
            grammars,
            prepared_grammars,
            priority: Priority::Interactive,
            max_answer_bytes: u64::MAX,
            interrupted,
        }
    }

    /// Limits the memory for the answers of sequences that are submitted at a time.
    #[must_use]
    pub fn with_answer_memory(self, max_answer_bytes: u64) -> ServingAdapter<'e> {
        ServingAdapter { max_answer_bytes, ..self }
    }

    /// Sets the priority of all sequences.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> ServingAdapter<'e> {
        ServingAdapter { priority, ..self }
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
        request.priority = self.priority;
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
        let mut submitted = Submitted {
            serving: self.serving,
            ids: vec![None; count],
            count: 0,
            bytes: HashMap::new(),
            total_bytes: 0,
        };
        let (mut next, mut ended) = (0, 0);
        while ended < count {
            if (self.interrupted)() {
                return Err(EngineError::Interrupted);
            }
            while next < count && submitted.count < max_in_flight {
                let request = requests.request(next);
                let bytes = sequence_bytes(&request);
                let total_bytes = submitted.total_bytes.saturating_add(bytes);
                if submitted.count > 0 && total_bytes > self.max_answer_bytes {
                    break;
                }
                submitted.add(next, self.submit(next, request, &sender)?, bytes);
                next += 1;
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
                let Some(id) = submitted.ids[index] else { continue };
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
                    submitted.remove(index);
                    ended += 1;
                }
                if sink.has_failed() {
                    return Err(EngineError::Interrupted);
                }
            }
        }
        Ok(())
    }
}
