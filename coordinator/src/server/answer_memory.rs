//! Memory for answers: what a request may need at most is counted before it is let in.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::openai::item::Request;

/// Undelivered events of a request, at most; further tokens of its answers come together in one.
pub const MAX_BACKLOG: u64 = 256;

/// A new token until its answer is written: its id, its text and where that ends, in lists that
/// double.
const TOKEN_BYTES: u64 = 64;
/// A token of a prompt, once for each answer to it: its id, and its text where it is echoed.
const PROMPT_TOKEN_BYTES: u64 = 32;
/// A log-probability as the engine reports it, in a list that doubles.
const LOGPROB_BYTES: u64 = 16;
/// A log-probability with its token spelled, and as JSON: of one answer at a time.
const SPELLED_BYTES: u64 = 320;

/// Bytes that the memory is counted in.
const UNIT_BYTES: u64 = 1024;

/// Memory for the answers to all requests.
#[derive(Debug)]
pub struct AnswerMemory {
    max_bytes: u64,
    free: Arc<Semaphore>,
}

/// Memory that one request may use, until it is dropped.
#[derive(Debug)]
pub struct AnswerMemoryPermit(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

/// Returns how many bytes the answers to a request may take at most.
pub fn answer_bytes(request: &Request, is_streamed: bool) -> u64 {
    let width = u64::from(request.logprobs_of_token());
    let prompt_width = u64::from(request.logprobs_of_prompt_token());
    let (mut kept, mut largest) = (0_u64, 0_u64);
    for prompt in &request.prompts {
        let (new, old) = (u64::from(prompt.drawn()), prompt.tokens.len() as u64);
        let each = new * (TOKEN_BYTES + LOGPROB_BYTES * width)
            + old * (PROMPT_TOKEN_BYTES + LOGPROB_BYTES * prompt_width);
        kept = kept.saturating_add(each.saturating_mul(request.n as u64));
        largest = largest.max((new * width + old * prompt_width) * SPELLED_BYTES);
    }
    let backlog = if is_streamed { MAX_BACKLOG * SPELLED_BYTES * (1 + width) } else { 0 };
    kept.saturating_add(largest).saturating_add(backlog)
}

impl AnswerMemory {
    /// So many bytes for the answers to all requests.
    pub fn new(max_bytes: u64) -> AnswerMemory {
        let units = usize::try_from(max_bytes / UNIT_BYTES).unwrap_or(usize::MAX);
        let free = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        AnswerMemory { max_bytes, free }
    }

    /// Takes what the answers to a request may need beyond `free_bytes`, which a plain answer as
    /// long as the context has without being counted.
    ///
    /// # Errors
    /// A request that may need more than there is, or more than others leave at the moment.
    pub fn take(
        &self,
        request: &Request,
        is_streamed: bool,
        free_bytes: u64,
        retry_after_s: u64,
    ) -> Result<AnswerMemoryPermit, ApiError> {
        let bytes = answer_bytes(request, is_streamed);
        let counted = bytes.saturating_sub(free_bytes);
        if counted > self.max_bytes {
            let message = format!(
                "The answers may take {} MiB of the server's memory, and it allows {} MiB for all \
                 (--max-answer-memory); ask for fewer answers, tokens or log-probabilities.",
                bytes.div_ceil(1 << 20),
                self.max_bytes >> 20
            );
            return Err(ApiError::invalid("answers_too_large", message));
        }
        let units = u32::try_from(counted.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let units = units.min(u32::try_from(self.max_bytes / UNIT_BYTES).unwrap_or(u32::MAX));
        let permit = Arc::clone(&self.free).try_acquire_many_owned(units);
        permit.map(AnswerMemoryPermit).map_err(|_| {
            let message = "The answers to other requests take the memory that this server allows \
                           for answers (--max-answer-memory); ask again later.";
            ApiError::too_many("answer_memory_full", message, retry_after_s)
        })
    }

    /// Bytes that a plain answer of so many tokens takes.
    pub const fn plain_bytes(tokens: u64) -> u64 {
        tokens * (TOKEN_BYTES + PROMPT_TOKEN_BYTES) + MAX_BACKLOG * SPELLED_BYTES
    }
}
