//! Threads that turn tokens into text. The model's tokenizer is called for every token, which must
//! delay neither the engine nor the sockets.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use shm::sync::{AtomicU64, Ordering};

use super::facts::SharedCodec;
use super::finishers::{FinishTask, FinisherPool};
use super::metrics::Metrics;
use super::sequence::{Begun, Ear, News, Note, What};
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::{Finish, Logprob};
use crate::boundary::serving::Event;
use crate::openai::following::Following;
use crate::openai::growing::Growing;

/// Number of threads. With several, a tokenizer that does not respond delays only some of the
/// answers.
const TELLERS: usize = 2;

/// Pool of threads, which end when all senders of messages are dropped.
#[derive(Debug)]
pub struct Tellers {
    notes: Vec<Sender<Note>>,
    next: AtomicU64,
}

impl Tellers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start more threads.
    pub fn start(codec: Option<&SharedCodec>, metrics: &Arc<Metrics>) -> io::Result<Tellers> {
        let finishers = Arc::new(FinisherPool::start(codec)?);
        let start = |index: usize| {
            let (sender, inbox) = channel();
            let finishers = Arc::clone(&finishers);
            let (codec, metrics) = (codec.cloned(), Arc::clone(metrics));
            let thread = std::thread::Builder::new().name(format!("text {index}"));
            thread.spawn(move || work(codec.as_ref(), &inbox, &metrics, &finishers))?;
            Ok(sender)
        };
        let notes = (0..TELLERS).map(start).collect::<io::Result<_>>()?;
        Ok(Tellers { notes, next: AtomicU64::new(0) })
    }

    /// Assigns a sequence to a thread; returns the listener for the engine.
    pub fn begin(&self, begun: Begun) -> Ear {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let notes = &self.notes[number as usize % self.notes.len()];
        let gone = begun.gone.clone();
        // If the thread has ended, the request notices that its events have ended.
        let _ = notes.send(Note::Begin(number, Box::new(begun)));
        Ear::new(number, notes.clone(), gone)
    }
}

fn work(
    codec: Option<&SharedCodec>,
    inbox: &Receiver<Note>,
    metrics: &Metrics,
    finishers: &FinisherPool,
) {
    let codec = codec.map(|codec| &**codec as &dyn TextCodec);
    let mut sequences: HashMap<u64, Followed<'_>> = HashMap::new();
    while let Ok(note) = inbox.recv() {
        match note {
            Note::Begin(number, begun) => {
                sequences.insert(number, Followed::new(*begun, codec));
            }
            Note::Event(number, event, at) => {
                let Some(sequence) = sequences.remove(&number) else { continue };
                if let Some(sequence) = sequence.take(event, at, finishers, metrics) {
                    sequences.insert(number, sequence);
                }
            }
            Note::Lost(number) => {
                if let Some(sequence) = sequences.remove(&number) {
                    let sentence = "The engine stopped before the answer was complete.".to_owned();
                    sequence.tell(What::Failed(sentence));
                }
            }
        }
    }
}

/// A sequence that is being answered.
struct Followed<'a> {
    begun: Begun,
    growing: Growing<'a>,
    /// Time of its last token.
    last: Option<Instant>,
}

impl<'a> Followed<'a> {
    fn new(begun: Begun, codec: Option<&'a dyn TextCodec>) -> Followed<'a> {
        let following = Following::new(&begun.request, begun.choice, begun.is_streamed);
        Followed { begun, growing: Growing::new(codec, following), last: None }
    }

    /// Processes an event. Returns the sequence, or `None` if no more events are expected.
    fn take(
        mut self,
        event: Event,
        at: Instant,
        finishers: &FinisherPool,
        metrics: &Metrics,
    ) -> Option<Followed<'a>> {
        match event {
            Event::Prompt { cached_tokens, waited, logprobs } => {
                metrics.queue.observe(waited.as_secs_f64());
                let took = at.duration_since(self.begun.arrived);
                metrics.prompt_computed.observe(took.as_secs_f64());
                self.tell(What::Prompt { cached_tokens, logprobs }).then_some(self)
            }
            Event::Token { token, logprobs } => {
                self.time(at, metrics);
                self.grow(token, &logprobs, finishers)
            }
            Event::Finished(finish) => {
                self.end(finish, false, finishers);
                None
            }
            Event::Failed(sentence) => {
                self.tell(What::Failed(sentence));
                None
            }
        }
    }

    fn time(&mut self, at: Instant, metrics: &Metrics) {
        match self.last.replace(at) {
            None => {
                let first = at.duration_since(self.begun.arrived);
                metrics.first_token.observe(first.as_secs_f64());
            }
            Some(before) => {
                metrics.between_tokens.observe(at.duration_since(before).as_secs_f64());
            }
        }
    }

    fn grow(
        mut self,
        token: u32,
        logprobs: &[Logprob],
        finishers: &FinisherPool,
    ) -> Option<Followed<'a>> {
        if self.growing.push(token, logprobs) {
            self.begun.gone.set();
            self.end(Finish::Stop, true, finishers);
            return None;
        }
        // The last token is sent with the end of the answer, which follows at once, so that there
        // is one event per token.
        let max_new = self.begun.request.prompt_of(self.begun.choice).max_new;
        if !self.begun.is_streamed || self.growing.len() >= max_new as usize {
            return Some(self);
        }
        // A client that is slower than the model receives several tokens per event.
        if !self.begun.backlog.add() {
            return Some(self);
        }
        let delta = self.growing.take();
        let tokens = self.growing.len() as u64;
        self.tell(What::Grown(delta, tokens)).then_some(self)
    }

    fn end(self, finish: Finish, by_stop_string: bool, finishers: &FinisherPool) {
        let Followed { begun, growing, .. } = self;
        finishers.add(FinishTask { begun, tokens: growing.into_ended(finish), by_stop_string });
    }

    /// Sends an event to the request; returns false if it receives no more events.
    fn tell(&self, what: What) -> bool {
        let heard = self.begun.news.send(News { choice: self.begun.choice, what }).is_ok();
        if !heard {
            self.begun.gone.set();
        }
        heard
    }
}
