//! Memory for answers: the maximum that a request may need is reserved before it is submitted to
//! the engine.

use std::sync::Arc;

use openai::input_line::CompletionRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// Maximum number of undelivered events of a request; beyond it, several tokens of an answer share
/// one event.
pub const MAX_BACKLOG: u64 = 256;

/// Bytes of a new token until its answer is written: its id, its text and the position at which the
/// text ends, in lists that grow by doubling.
const TOKEN_BYTES: u64 = 64;
/// Bytes of a prompt token in each answer to the prompt: its id, and its text if it is echoed.
const PROMPT_TOKEN_BYTES: u64 = 32;
/// Bytes of a log-probability as the engine reports it, in a list that grows by doubling.
const LOGPROB_BYTES: u64 = 16;
/// Bytes of a log-probability with its token's text and as JSON, which exist for only one answer at
/// a time.
const JSON_LOGPROB_BYTES: u64 = 320;

/// Unit in which the memory is reserved, in bytes.
const UNIT_BYTES: u64 = 1024;

/// Memory for the answers to all requests.
#[derive(Debug)]
pub struct AnswerMemory {
    max_bytes: u64,
    free: Arc<Semaphore>,
}

/// Memory that one request may use, which is released when this is dropped.
#[derive(Debug)]
pub struct AnswerMemoryPermit(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

/// Returns the maximum number of bytes that the answers to a request may need.
pub fn answer_bytes(request: &CompletionRequest, is_streamed: bool) -> u64 {
    let width = u64::from(request.logprobs_per_token());
    let prompt_width = u64::from(request.logprobs_per_prompt_token());
    let (mut kept, mut largest) = (0_u64, 0_u64);
    for prompt in &request.prompts {
        let (new, old) = (u64::from(prompt.engine_max_new()), prompt.tokens.len() as u64);
        let each = new * (TOKEN_BYTES + LOGPROB_BYTES * width)
            + old * (PROMPT_TOKEN_BYTES + LOGPROB_BYTES * prompt_width);
        kept = kept.saturating_add(each.saturating_mul(request.n as u64));
        largest = largest.max((new * width + old * prompt_width) * JSON_LOGPROB_BYTES);
    }
    let backlog = if is_streamed { MAX_BACKLOG * JSON_LOGPROB_BYTES * (1 + width) } else { 0 };
    kept.saturating_add(largest).saturating_add(backlog)
}

impl AnswerMemory {
    /// Creates a pool of `max_bytes` for the answers to all requests.
    pub fn new(max_bytes: u64) -> AnswerMemory {
        let units = usize::try_from(max_bytes / UNIT_BYTES).unwrap_or(usize::MAX);
        let free = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        AnswerMemory { max_bytes, free }
    }

    /// Reserves `stored_bytes` for the conversation of a response that is to be stored, and the
    /// bytes that the answers to a request may need in excess of `free_bytes`, the size of a plain
    /// answer that fills the context, which is not counted.
    ///
    /// # Errors
    /// The request may need more than `max_bytes`, or more than other requests leave at the moment.
    pub fn acquire(
        &self,
        request: &CompletionRequest,
        is_streamed: bool,
        stored_bytes: u64,
        free_bytes: u64,
        retry_after_s: u64,
    ) -> Result<AnswerMemoryPermit, ApiError> {
        let bytes = answer_bytes(request, is_streamed);
        let charged_bytes = bytes.saturating_sub(free_bytes).saturating_add(stored_bytes);
        self.acquire_bytes(bytes, charged_bytes, retry_after_s)
    }

    /// Reserves `charged_bytes` for answers that may need `bytes`.
    ///
    /// # Errors
    /// See [`AnswerMemory::acquire`].
    pub fn acquire_bytes(
        &self,
        bytes: u64,
        charged_bytes: u64,
        retry_after_s: u64,
    ) -> Result<AnswerMemoryPermit, ApiError> {
        if charged_bytes > self.max_bytes {
            let message = format!(
                "The answers may require {} MiB of memory, but the server allows {} MiB for all \
                 requests (--max-answer-memory). Request fewer choices, tokens or \
                 log-probabilities.",
                bytes.div_ceil(1 << 20),
                self.max_bytes >> 20
            );
            return Err(ApiError::invalid("answers_too_large", message));
        }
        let units = u32::try_from(charged_bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let units = units.min(u32::try_from(self.max_bytes / UNIT_BYTES).unwrap_or(u32::MAX));
        let permit = Arc::clone(&self.free).try_acquire_many_owned(units);
        permit.map(AnswerMemoryPermit).map_err(|_| {
            let message = "The server's memory for answers (--max-answer-memory) is in use by \
                           other requests. Please try again later.";
            ApiError::too_many("answer_memory_full", message, retry_after_s)
        })
    }

    /// Returns the number of bytes of a plain answer with the given number of tokens.
    pub const fn min_bytes(tokens: u64) -> u64 {
        tokens * (TOKEN_BYTES + PROMPT_TOKEN_BYTES) + MAX_BACKLOG * JSON_LOGPROB_BYTES
    }
}
