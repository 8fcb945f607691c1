//! Messages about a sequence, from the engine to the threads that turn tokens into text and on to
//! the request.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use shm::sync::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc::UnboundedSender;

use super::admission::AnswerPlace;
use super::answer_memory::MAX_BACKLOG;
use crate::boundary::engine::Logprob;
use crate::boundary::serving::{Event, Listener, Listening};
use crate::openai::found_logprobs::FoundLogprobs;
use crate::openai::growing::Delta;
use crate::openai::item::Request;
use crate::openai::stop::Answer;

/// Flag that is set when a sequence's events are no longer needed.
#[derive(Debug, Clone, Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
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
pub struct Begun {
    pub request: Arc<Request>,
    /// Index of the answer in its request.
    pub choice: usize,
    /// True if the answer is sent while it is generated.
    pub is_streamed: bool,
    pub arrived: Instant,
    pub news: UnboundedSender<News>,
    pub gone: Gone,
    /// Events of the request that were sent and not received yet.
    pub backlog: Backlog,
    /// Released when this value is dropped.
    pub place: AnswerPlace,
}

/// Number of events of a request that were sent and not received yet.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<AtomicU64>);

impl Backlog {
    /// Counts one more event. Returns false, without counting it, if there are too many.
    pub fn add(&self) -> bool {
        // Relaxed: the limit need not be exact.
        let has_room = self.0.load(Ordering::Relaxed) < MAX_BACKLOG;
        if has_room {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Counts an event as received.
    pub fn take(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Message about the sequence with the given number.
#[derive(Debug)]
pub enum Note {
    Begin(u64, Box<Begun>),
    Event(u64, Event, Instant),
    /// The engine dropped the sequence's listener before its last event.
    Lost(u64),
}

/// Event of one of a request's answers.
#[derive(Debug)]
pub struct News {
    pub choice: usize,
    pub what: What,
}

/// Kind of event of an answer.
#[derive(Debug)]
pub enum What {
    Prompt {
        cached_tokens: u32,
        logprobs: Vec<Logprob>,
    },
    /// New part of the answer, and the number of its tokens so far.
    Grown(Delta, u64),
    Ended(Box<Ended>),
    /// The answer failed for the given reason, a complete sentence.
    Failed(String),
    /// All tokens were generated, but the tokenizer cannot decode them. The reason is a complete
    /// sentence.
    Lost(String),
}

/// An answer that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Part of the answer that was not sent yet.
    pub rest: Delta,
    /// The answer without its log-probabilities.
    pub answer: Answer,
    /// Log-probabilities, if they were requested and the answer is not streamed.
    pub logprobs: Option<FoundLogprobs>,
    /// The answer ended at a stop string, so the engine may still be computing it.
    pub by_stop_string: bool,
}

/// Forwards the engine's events for one sequence to a thread that turns tokens into text.
#[derive(Debug)]
pub struct Ear {
    number: u64,
    notes: Sender<Note>,
    gone: Gone,
    is_over: bool,
}

impl Ear {
    /// Creates the listener of a sequence for which [`Note::Begin`] was sent.
    pub fn new(number: u64, notes: Sender<Note>, gone: Gone) -> Ear {
        Ear { number, notes, gone, is_over: false }
    }
}

impl Listener for Ear {
    fn tell(&mut self, event: Event) -> Listening {
        if self.gone.is_set() {
            return Listening::No;
        }
        self.is_over = matches!(event, Event::Finished(_) | Event::Failed(_));
        match self.notes.send(Note::Event(self.number, event, Instant::now())) {
            Ok(()) => Listening::Yes,
            Err(_) => Listening::No,
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.notes.send(Note::Lost(self.number));
        }
    }
}
