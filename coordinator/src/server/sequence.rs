//! What an engine tells of a sequence, on its way to the thread that turns tokens into text.

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

/// Whether nobody waits for a sequence any more.
#[derive(Debug, Clone, Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    /// Nobody does.
    pub fn set(&self) {
        // Relaxed: it orders nothing, and is looked at again with the next token.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether nobody does.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A sequence that begins.
#[derive(Debug)]
pub struct Begun {
    pub request: Arc<Request>,
    /// Which of its answers.
    pub choice: usize,
    /// It is told while it grows.
    pub is_streamed: bool,
    pub arrived: Instant,
    pub news: UnboundedSender<News>,
    pub gone: Gone,
    /// Events of the request that were told and not taken.
    pub backlog: Backlog,
    /// Given back with this value.
    pub place: AnswerPlace,
}

/// How many events of a request were told and not taken yet.
#[derive(Debug, Clone, Default)]
pub struct Backlog(Arc<AtomicU64>);

impl Backlog {
    /// Notes one more event. Returns false, and notes none, if there are too many.
    pub fn add(&self) -> bool {
        // Relaxed: a few more or less make no difference.
        let has_room = self.0.load(Ordering::Relaxed) < MAX_BACKLOG;
        if has_room {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Notes that an event was taken.
    pub fn take(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is told of a sequence by this number.
#[derive(Debug)]
pub enum Note {
    Begin(u64, Box<Begun>),
    Event(u64, Event, Instant),
    /// The engine forgot it.
    Lost(u64),
}

/// What a request is told of one of its answers.
#[derive(Debug)]
pub struct News {
    pub choice: usize,
    pub what: What,
}

/// What became of an answer.
#[derive(Debug)]
pub enum What {
    Prompt {
        cached_tokens: u32,
        logprobs: Vec<Logprob>,
    },
    /// More of it, and how many tokens there are by now.
    Grown(Delta, u64),
    Ended(Box<Ended>),
    /// A whole sentence.
    Failed(String),
}

/// An answer that has ended.
#[derive(Debug)]
pub struct Ended {
    /// What was not told of it.
    pub rest: Delta,
    /// Without log-probabilities.
    pub answer: Answer,
    /// Of an answer that is told whole, where they were asked for.
    pub logprobs: Option<FoundLogprobs>,
    /// The engine may not know yet.
    pub by_stop_string: bool,
}

/// Hears the engine for one sequence.
#[derive(Debug)]
pub struct Ear {
    number: u64,
    notes: Sender<Note>,
    gone: Gone,
    is_over: bool,
}

impl Ear {
    /// Of a sequence that was told as begun.
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
