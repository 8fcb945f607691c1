//! State that all requests of a server share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use shm::sync::{AtomicU64, Ordering};
use tokio::sync::watch;

use super::admission::{Admission, Full};
use super::answer_memory::AnswerMemory;
use super::blocking::BlockingThreads;
use super::error::ApiError;
use super::facts::{ModelCard, ServerOptions};
use super::inbound::Inbound;
use super::log::Log;
use super::metrics::Metrics;
use super::tellers::Tellers;
use crate::boundary::serving::{Refused, Serving, State};
use crate::openai::body::unread::Unread;
use crate::openai::chats::ChatRules;
use crate::openai::grammar_cache::GrammarCache;
use crate::openai::prompt::Limits;
use crate::openai::prompt_bounds::PromptBounds;

/// Phase of a server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Serving,
    /// Answers in progress continue, but new requests are refused.
    Draining,
    /// Answers in progress are cut off.
    Ending,
}

/// State that all requests share.
#[derive(Debug)]
pub struct Shared {
    pub engine: Arc<dyn Serving>,
    pub model: ModelCard,
    pub options: ServerOptions,
    pub unread: Unread,
    pub admission: Arc<Admission>,
    pub inbound: Inbound,
    pub tellers: Tellers,
    pub metrics: Arc<Metrics>,
    pub log: Log,
    pub grammars: GrammarCache,
    pub blocking: BlockingThreads,
    pub answer_memory: AnswerMemory,
    pub prompt_bounds: PromptBounds,
    pub chats: ChatRules,
    pub phase: watch::Receiver<Phase>,
    /// Distinguishes this server's ids from those of other servers.
    pub salt: String,
    /// Key for request ids, which makes them impossible to guess.
    pub id_key: RandomState,
    pub requests: AtomicU64,
}

impl Shared {
    /// Returns an id that no other request has.
    pub fn new_id(&self) -> String {
        format!("{}-{}", self.salt, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns an id for a request whose client provides none.
    pub fn new_request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("req_{:016x}{number:x}", self.id_key.hash_one(number))
    }

    /// Returns the maximum number of positions of a prompt and its answer together.
    pub fn context(&self) -> usize {
        (self.engine.limits().context as usize).min(self.model.max_positions)
    }

    /// Returns the model's limits on prompts.
    pub fn prompt_limits(&self) -> Limits {
        Limits {
            context: self.context(),
            vocab_size: self.model.vocab_size,
            unread_tokenizer: self.model.unread_tokenizer,
        }
    }

    /// Checks that the engine computes requests at the moment.
    ///
    /// # Errors
    /// The model is being loaded, or requests are not accepted.
    pub fn check_ready(&self) -> Result<(), ApiError> {
        match self.state() {
            State::Loading => Err(ApiError::unavailable("loading", "The model is loading.")),
            _ => self.check_open(),
        }
    }

    fn state(&self) -> State {
        if *self.phase.borrow() >= Phase::Draining {
            State::Draining
        } else {
            self.engine.status().state
        }
    }

    /// Checks that requests are accepted. While workers are restarted, requests are accepted and
    /// wait.
    ///
    /// # Errors
    /// The server is shutting down or has ended.
    pub fn check_open(&self) -> Result<(), ApiError> {
        match self.state() {
            State::Ready | State::Loading => Ok(()),
            State::Draining => Err(refused(Refused::Draining)),
            State::Ended => Err(refused(Refused::Ended)),
        }
    }

    /// Returns the error for a request that is not admitted.
    pub fn full(&self, full: Full) -> ApiError {
        let seconds = self.admission.retry_after_s();
        match full {
            Full::Requests => ApiError::too_many("queue_full", full.to_string(), seconds),
            Full::Tokens => ApiError::too_many("queue_tokens_full", full.to_string(), seconds),
            Full::TooLarge { .. } => ApiError::invalid("too_many_answers", full.to_string()),
        }
    }
}

/// Returns the error for a request that the engine refused.
pub fn refused(refused: Refused) -> ApiError {
    let code = match refused {
        Refused::Draining => "draining",
        Refused::Ended => "ended",
    };
    let sentence = refused.to_string();
    let (first, rest) = sentence.split_at(1);
    ApiError::unavailable(code, format!("{}{rest}.", first.to_uppercase()))
}
