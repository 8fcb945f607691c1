//! Messages about a sequence, from the engine to the threads that turn tokens into text and on to
//! the request.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use engine_api::event::Logprob;
use engine_api::serving::{DraftCounts, EngineEvent, EventSink};
use openai::answer_accumulator::AnswerDelta;
use openai::input_line::CompletionRequest;
use openai::raw_logprobs::RawLogprobs;
use openai::stop::Answer;
use shm::sync::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc::UnboundedSender;

use super::admission::AnswerSlot;
use super::answer_memory::MAX_BACKLOG;

/// Flag that is set when a sequence's events are no longer needed.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Sets the flag.
    pub fn set(&self) {
        // Relaxed: no other memory access depends on the order, and the flag is checked again with
        // the next token.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A sequence that is about to be submitted.
#[derive(Debug)]
pub struct TrackedAnswer {
    pub request: Arc<CompletionRequest>,
    /// Index of the answer in its request.
    pub choice: usize,
    /// True if the answer is sent while it is generated.
    pub is_streamed: bool,
    pub arrived_at: Instant,
    pub events: UnboundedSender<AnswerEvent>,
    pub cancel_flag: CancelFlag,
    /// Events of the request that were sent and not received yet.
    pub backlog: Backlog,
    /// Released when this value is dropped.
    pub answer_slot: AnswerSlot,
}

/// Number of events of a request that were sent and not received yet.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<AtomicU64>);

impl Backlog {
    /// Counts one more event. Returns false, without counting it, if there are too many.
    pub fn try_add(&self) -> bool {
        // Relaxed: the limit need not be exact.
        let has_capacity = self.0.load(Ordering::Relaxed) < MAX_BACKLOG;
        if has_capacity {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        has_capacity
    }

    /// Counts an event as received.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Message about the sequence with the given number.
#[derive(Debug)]
pub enum DetokenizeTask {
    Begin(u64, Box<TrackedAnswer>),
    Event(u64, EngineEvent, Instant),
    /// The engine dropped the sequence's forwarder before its last event.
    EngineLost(u64),
}

/// Event of one of a request's answers.
#[derive(Debug)]
pub struct AnswerEvent {
    pub choice: usize,
    pub kind: AnswerEventKind,
}

/// Kind of event of an answer.
#[derive(Debug)]
pub enum AnswerEventKind {
    Prompt {
        cached_tokens: u32,
        logprobs: Vec<Logprob>,
    },
    /// New part of the answer, and the number of its tokens so far.
    Delta(AnswerDelta, u64),
    Completed(Box<CompletedAnswer>),
    /// The answer failed for the given reason, a complete sentence.
    Failed(String),
    /// All tokens were generated, but the tokenizer cannot decode them. The reason is a complete
    /// sentence.
    DetokenizationFailed(String),
}

/// An answer that has ended.
#[derive(Debug)]
pub struct CompletedAnswer {
    /// Part of the answer that was not sent yet.
    pub final_delta: AnswerDelta,
    /// The answer without its log-probabilities.
    pub answer: Answer,
    /// Log-probabilities, if they were requested and the answer is not streamed.
    pub logprobs: Option<RawLogprobs>,
    /// The answer ended at a stop string, so the engine may still be computing it.
    pub is_stop_string: bool,
    /// Drafted tokens up to the last one of the answer.
    pub drafts: DraftCounts,
}

/// Forwards the engine's events for one sequence to a thread that turns tokens into text.
#[derive(Debug)]
pub struct EventForwarder {
    number: u64,
    tasks: Sender<DetokenizeTask>,
    cancel_flag: CancelFlag,
    has_finished: bool,
}

impl EventForwarder {
    /// Creates the forwarder of a sequence for which [`DetokenizeTask::Begin`] was sent.
    pub fn new(
        number: u64,
        tasks: Sender<DetokenizeTask>,
        cancel_flag: CancelFlag,
    ) -> EventForwarder {
        EventForwarder { number, tasks, cancel_flag, has_finished: false }
    }
}

impl EventSink for EventForwarder {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        if self.cancel_flag.is_set() {
            return ControlFlow::Break(());
        }
        self.has_finished = matches!(event, EngineEvent::Finished(_) | EngineEvent::Failed(_));
        match self.tasks.send(DetokenizeTask::Event(self.number, event, Instant::now())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Drop for EventForwarder {
    fn drop(&mut self) {
        if !self.has_finished {
            let _ = self.tasks.send(DetokenizeTask::EngineLost(self.number));
        }
    }
}
