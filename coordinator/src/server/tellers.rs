//! Threads that turn tokens into text: a model's tokenizer is asked for every token, which must
//! hold up neither the engine nor the sockets.

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

/// How many there are: a tokenizer that does not answer holds up a part of the answers only.
const TELLERS: usize = 2;

/// The threads, which end when nobody tells them anything any more.
#[derive(Debug)]
pub struct Tellers {
    notes: Vec<Sender<Note>>,
    next: AtomicU64,
}

impl Tellers {
    /// Starts them.
    ///
    /// # Errors
    /// The system starts no more threads.
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

    /// Follows a sequence; what the engine is to tell.
    pub fn begin(&self, begun: Begun) -> Ear {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let notes = &self.notes[number as usize % self.notes.len()];
        let gone = begun.gone.clone();
        // A thread that is gone is noticed by whoever waits for what it would tell.
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
                    let sentence = "The engine ended before this answer did.".to_owned();
                    sequence.tell(What::Failed(sentence));
                }
            }
        }
    }
}

/// A sequence while it is answered.
struct Followed<'a> {
    begun: Begun,
    growing: Growing<'a>,
    /// When its last token came.
    last: Option<Instant>,
}

impl<'a> Followed<'a> {
    fn new(begun: Begun, codec: Option<&'a dyn TextCodec>) -> Followed<'a> {
        let following = Following::new(&begun.request, begun.is_streamed);
        Followed { begun, growing: Growing::new(codec, following), last: None }
    }

    /// Takes an event; itself, unless it was the last one.
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
        // The last token is told with the end, which follows at once: an event for each token.
        let max_new = self.begun.request.prompt_of(self.begun.choice).max_new;
        if !self.begun.is_streamed || self.growing.len() >= max_new as usize {
            return Some(self);
        }
        // A reader who is slower than the model gets several tokens at a time.
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

    /// Whether anybody listens.
    fn tell(&self, what: What) -> bool {
        let heard = self.begun.news.send(News { choice: self.begun.choice, what }).is_ok();
        if !heard {
            self.begun.gone.set();
        }
        heard
    }
}
