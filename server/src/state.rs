//! State that all requests of a server share.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use axum::http::StatusCode;
use engine_api::serving::{Engine, EngineState, SubmitError};
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::chats::ChatRules;
use openai::grammar_cache::GrammarCache;
use openai::prompt::ModelLimits;
use openai::prompt_bounds::PromptBounds;
use shm::sync::{AtomicU64, Ordering};
use tokio::sync::watch;

use super::admission::{Admission, AdmissionError};
use super::answer_memory::AnswerMemory;
use super::background_task::BackgroundResponses;
use super::batches::service::BatchService;
use super::blocking::BlockingPools;
use super::body_reader::BodyReader;
use super::config::{ModelCard, ServerOptions};
use super::detokenizer_pool::DetokenizerPool;
use super::error::{ApiError, INVALID_REQUEST};
use super::metrics::Metrics;
use super::request_log::RequestLog;
use super::response_store::ResponseStore;

/// Lower bound on the maximum number of JSON values in a body, regardless of the limit on prompt
/// tokens.
const MIN_MAX_VALUES: u64 = 1_000_000;

/// Phase of a server's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerPhase {
    Serving,
    /// Answers in progress continue, but new requests are refused.
    Draining,
    /// Answers in progress are cut off.
    Ending,
}

/// State that all requests share.
#[derive(Debug)]
pub struct ServerState {
    pub engine: Arc<dyn Engine>,
    pub model: ModelCard,
    pub options: ServerOptions,
    pub unread: UnknownFieldPolicy,
    pub admission: Arc<Admission>,
    pub body_reader: BodyReader,
    pub detokenizer_pool: DetokenizerPool,
    pub metrics: Arc<Metrics>,
    pub request_log: RequestLog,
    pub grammars: GrammarCache,
    pub blocking_pools: BlockingPools,
    pub answer_memory: AnswerMemory,
    pub prompt_bounds: PromptBounds,
    pub chats: ChatRules,
    /// Stored responses; `None` if the server stores none.
    pub responses: Option<ResponseStore>,
    pub background_responses: BackgroundResponses,
    /// Files and batches; `None` if the server runs no batches.
    pub batches: Option<BatchService>,
    pub phase: watch::Receiver<ServerPhase>,
    /// Distinguishes this server's ids from those of other servers.
    pub id_prefix: String,
    /// Key for request ids, which makes them impossible to guess.
    pub id_key: RandomState,
    pub requests: AtomicU64,
}

impl ServerState {
    /// Returns an id that no other request has.
    pub fn next_id(&self) -> String {
        format!("{}-{}", self.id_prefix, self.requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns an id for a request whose client provides none.
    pub fn next_request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("req_{:016x}{number:x}", self.id_key.hash_one(number))
    }

    /// Returns an id that no other request has and that clients cannot guess.
    pub fn next_secret_id(&self) -> String {
        let id = self.next_id();
        format!("{id}-{:016x}", self.id_key.hash_one(&id))
    }

    /// Returns the maximum number of JSON values in a body or a stored response.
    pub fn max_json_values(&self) -> usize {
        usize::try_from(self.options.max_queue_tokens.max(MIN_MAX_VALUES)).unwrap_or(usize::MAX)
    }

    /// Returns a sentence, after a space, that tells how responses are stored; empty if they are.
    pub fn store_hint(&self) -> &'static str {
        match self.responses {
            Some(_) => "",
            None => " This server stores no responses; start it with --store-responses.",
        }
    }

    /// Returns the error for a response that is not stored.
    pub fn no_such_response(&self, id: &str) -> ApiError {
        let shown: String = id.chars().take(100).collect();
        let message = format!("Response with id '{shown}' not found.{}", self.store_hint());
        let status = StatusCode::NOT_FOUND;
        ApiError::new(status, INVALID_REQUEST, "response_not_found", message)
    }

    /// Returns the files and batches.
    ///
    /// # Errors
    /// The server runs no batches.
    pub fn batch_service(&self) -> Result<&BatchService, ApiError> {
        self.batches.as_ref().ok_or_else(|| {
            let message = "This server stores no files and runs no batches. Start it with \
                           --store-batches DIR.";
            let status = StatusCode::NOT_FOUND;
            ApiError::new(status, INVALID_REQUEST, "batches_disabled", message)
        })
    }

    /// Returns true if nothing new is computed any more.
    pub fn is_stopping(&self) -> bool {
        *self.phase.borrow() >= ServerPhase::Draining
            || self.engine.status().state == EngineState::Ended
    }

    /// Returns the maximum number of positions of a prompt and its answer together.
    pub fn context(&self) -> usize {
        (self.engine.limits().context as usize).min(self.model.max_positions)
    }

    /// Returns the model's limits on prompts.
    pub fn prompt_limits(&self) -> ModelLimits {
        ModelLimits {
            context: self.context(),
            vocab_size: self.model.vocab_size,
            unsupported_tokenizer: self.model.unsupported_tokenizer,
        }
    }

    /// Checks that the engine computes requests at the moment.
    ///
    /// # Errors
    /// The model is being loaded, or requests are not accepted.
    pub fn check_ready(&self) -> Result<(), ApiError> {
        match self.engine_state() {
            EngineState::Loading => Err(ApiError::unavailable("loading", "The model is loading.")),
            _ => self.check_open(),
        }
    }

    fn engine_state(&self) -> EngineState {
        if *self.phase.borrow() >= ServerPhase::Draining {
            EngineState::Draining
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
        match self.engine_state() {
            EngineState::Ready | EngineState::Loading => Ok(()),
            EngineState::Draining => Err(submit_error(SubmitError::Draining)),
            EngineState::Ended => Err(submit_error(SubmitError::Ended)),
        }
    }

    /// Returns the error for a request that is not admitted.
    pub fn admission_error(&self, full: AdmissionError) -> ApiError {
        let seconds = self.admission.retry_after_s();
        match full {
            AdmissionError::QueueFull => {
                ApiError::too_many("queue_full", full.to_string(), seconds)
            }
            AdmissionError::TooManyTokens => {
                ApiError::too_many("queue_tokens_full", full.to_string(), seconds)
            }
            AdmissionError::TooManyAnswers { .. } => {
                ApiError::invalid("too_many_answers", full.to_string())
            }
        }
    }
}

/// Returns the error for a request that the engine refused.
pub fn submit_error(refused: SubmitError) -> ApiError {
    let code = match refused {
        SubmitError::Draining => "draining",
        SubmitError::Ended => "ended",
    };
    let sentence = refused.to_string();
    let (first, rest) = sentence.split_at(1);
    ApiError::unavailable(code, format!("{}{rest}.", first.to_uppercase()))
}
