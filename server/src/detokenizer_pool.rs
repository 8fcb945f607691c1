//! Threads that turn tokens into text. The model's tokenizer is called for every token, which must
//! delay neither the engine nor the sockets.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use engine_api::codec::TextCodec;
use engine_api::event::{FinishCause, Logprob};
use engine_api::serving::{DraftCounts, EngineEvent};
use openai::answer_accumulator::AnswerAccumulator;
use openai::answer_options::AnswerOptions;
use shm::sync::{AtomicU64, Ordering};

use super::answer_events::{
    AnswerEvent, AnswerEventKind, DetokenizeTask, EventForwarder, TrackedAnswer,
};
use super::config::SharedCodec;
use super::finishers::{FinishTask, FinisherPool};
use super::metrics::Metrics;

/// Number of threads. With several, a tokenizer that does not respond delays only some of the
/// answers.
const DETOKENIZER_THREADS: usize = 2;

/// Pool of threads, which end when all senders of messages are dropped.
#[derive(Debug)]
pub struct DetokenizerPool {
    tasks: Vec<Sender<DetokenizeTask>>,
    next_answer: AtomicU64,
}

impl DetokenizerPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start more threads.
    pub fn start(
        codec: Option<&SharedCodec>,
        metrics: &Arc<Metrics>,
    ) -> io::Result<DetokenizerPool> {
        let finishers = Arc::new(FinisherPool::start(codec)?);
        let start = |index: usize| {
            let (sender, inbox) = channel();
            let finishers = Arc::clone(&finishers);
            let (codec, metrics) = (codec.cloned(), Arc::clone(metrics));
            let thread = std::thread::Builder::new().name(format!("text {index}"));
            thread.spawn(move || run_detokenizer(codec.as_ref(), &inbox, &metrics, &finishers))?;
            Ok(sender)
        };
        let tasks = (0..DETOKENIZER_THREADS).map(start).collect::<io::Result<_>>()?;
        Ok(DetokenizerPool { tasks, next_answer: AtomicU64::new(0) })
    }

    /// Assigns a sequence to a thread; returns the forwarder for the engine.
    pub fn track(&self, tracked: TrackedAnswer) -> EventForwarder {
        let number = self.next_answer.fetch_add(1, Ordering::Relaxed);
        let tasks = &self.tasks[number as usize % self.tasks.len()];
        let cancel_flag = tracked.cancel_flag.clone();
        // If the thread has ended, the request notices that its events have ended.
        let _ = tasks.send(DetokenizeTask::Begin(number, Box::new(tracked)));
        EventForwarder::new(number, tasks.clone(), cancel_flag)
    }
}

fn run_detokenizer(
    codec: Option<&SharedCodec>,
    inbox: &Receiver<DetokenizeTask>,
    metrics: &Metrics,
    finishers: &FinisherPool,
) {
    let codec = codec.map(|codec| &**codec as &dyn TextCodec);
    let mut sequences: HashMap<u64, DetokenizedAnswer<'_>> = HashMap::new();
    while let Ok(task) = inbox.recv() {
        match task {
            DetokenizeTask::Begin(number, begun) => {
                sequences.insert(number, DetokenizedAnswer::new(*begun, codec));
            }
            DetokenizeTask::Event(number, event, at) => {
                let Some(sequence) = sequences.remove(&number) else { continue };
                if let Some(sequence) = sequence.handle_event(event, at, finishers, metrics) {
                    sequences.insert(number, sequence);
                }
            }
            DetokenizeTask::EngineLost(number) => {
                if let Some(sequence) = sequences.remove(&number) {
                    let sentence = "The engine stopped before the answer was complete.".to_owned();
                    sequence.send(AnswerEventKind::Failed(sentence));
                }
            }
        }
    }
}

/// A sequence that is being answered.
struct DetokenizedAnswer<'a> {
    tracked: TrackedAnswer,
    accumulator: AnswerAccumulator<'a>,
    /// Time of its last token.
    last_token_at: Option<Instant>,
    drafts: DraftCounts,
}

impl<'a> DetokenizedAnswer<'a> {
    fn new(tracked: TrackedAnswer, codec: Option<&'a dyn TextCodec>) -> DetokenizedAnswer<'a> {
        let options = AnswerOptions::new(&tracked.request, tracked.choice, tracked.is_streamed);
        DetokenizedAnswer {
            tracked,
            accumulator: AnswerAccumulator::new(codec, options),
            last_token_at: None,
            drafts: DraftCounts::default(),
        }
    }

    /// Processes an event. Returns the sequence, or `None` if no more events are expected.
    fn handle_event(
        mut self,
        event: EngineEvent,
        at: Instant,
        finishers: &FinisherPool,
        metrics: &Metrics,
    ) -> Option<DetokenizedAnswer<'a>> {
        match event {
            EngineEvent::Prompt { cached_tokens, queue_time, logprobs } => {
                metrics.queue_time.observe(queue_time.as_secs_f64());
                let took = at.duration_since(self.tracked.arrived_at);
                metrics.prompt_time.observe(took.as_secs_f64());
                self.send(AnswerEventKind::Prompt { cached_tokens, logprobs }).then_some(self)
            }
            // Requests of embeddings have sinks of their own.
            EngineEvent::Pooled(_) => Some(self),
            EngineEvent::Token { token, logprobs } => {
                self.observe_latency(at, metrics);
                self.push_token(token, &logprobs, finishers)
            }
            EngineEvent::Drafts(drafts) => {
                self.drafts += drafts;
                Some(self)
            }
            EngineEvent::Finished(finish) => {
                self.finish(finish, false, finishers);
                None
            }
            EngineEvent::Failed(sentence) => {
                self.send(AnswerEventKind::Failed(sentence));
                None
            }
        }
    }

    fn observe_latency(&mut self, at: Instant, metrics: &Metrics) {
        match self.last_token_at.replace(at) {
            None => {
                let first = at.duration_since(self.tracked.arrived_at);
                metrics.first_token.observe(first.as_secs_f64());
            }
            Some(before) => {
                metrics.between_tokens.observe(at.duration_since(before).as_secs_f64());
            }
        }
    }

    fn push_token(
        mut self,
        token: u32,
        logprobs: &[Logprob],
        finishers: &FinisherPool,
    ) -> Option<DetokenizedAnswer<'a>> {
        if self.accumulator.push(token, logprobs) {
            self.tracked.cancel_flag.set();
            self.finish(FinishCause::Stop, true, finishers);
            return None;
        }
        // The last token is sent with the end of the answer, which follows at once, so that there
        // is one event per token.
        let max_new = self.tracked.request.prompt_of(self.tracked.choice).max_new;
        if !self.tracked.is_streamed || self.accumulator.len() >= max_new as usize {
            return Some(self);
        }
        // A client that is slower than the model receives several tokens per event.
        if !self.tracked.backlog.try_add() {
            return Some(self);
        }
        let delta = self.accumulator.take();
        let tokens = self.accumulator.len() as u64;
        self.send(AnswerEventKind::Delta(delta, tokens)).then_some(self)
    }

    fn finish(self, finish: FinishCause, by_stop_string: bool, finishers: &FinisherPool) {
        let DetokenizedAnswer { tracked, accumulator, drafts, .. } = self;
        finishers.add(FinishTask {
            tracked,
            tokens: accumulator.into_finished_tokens(finish),
            by_stop_string,
            drafts,
        });
    }

    /// Sends an event to the request; returns false if it receives no more events.
    fn send(&self, kind: AnswerEventKind) -> bool {
        let is_received =
            self.tracked.events.send(AnswerEvent { choice: self.tracked.choice, kind }).is_ok();
        if !is_received {
            self.tracked.cancel_flag.set();
        }
        is_received
    }
}
