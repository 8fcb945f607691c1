//! Memory that answers may need until their lines are written.

use engine_api::request::GenerationRequest;
use openai::input_line::{CompletionRequest, Prompt};

/// Bytes of a token: its id, its text and its place in lists that grow by doubling.
const TOKEN_BYTES: u64 = 64;
/// Bytes of a log-probability with its token's text.
const LOGPROB_BYTES: u64 = 320;

/// Sizes of a sequence from which its memory follows.
#[derive(Debug, Clone, Copy)]
struct SequenceSize {
    prompt_tokens: u64,
    max_new: u64,
    /// Log-probabilities per new token.
    logprobs: u64,
    /// Log-probabilities per prompt token.
    prompt_logprobs: u64,
}

impl SequenceSize {
    fn bytes(self) -> u64 {
        let each = |logprobs: u64| TOKEN_BYTES + LOGPROB_BYTES * logprobs;
        self.max_new * each(self.logprobs) + self.prompt_tokens * each(self.prompt_logprobs)
    }
}

/// Returns the maximum number of bytes of the answers to a request.
pub(super) fn request_bytes(request: &CompletionRequest) -> u64 {
    let of_prompt = |prompt: &Prompt| SequenceSize {
        prompt_tokens: prompt.tokens.len() as u64,
        max_new: prompt.engine_max_new().into(),
        logprobs: request.logprobs_per_token().into(),
        prompt_logprobs: request.logprobs_per_prompt_token().into(),
    };
    let each = request.prompts.iter().map(|prompt| of_prompt(prompt).bytes());
    each.fold(0, u64::saturating_add).saturating_mul(request.n as u64)
}

/// Returns the maximum number of bytes of the answer of a sequence.
pub(super) fn sequence_bytes(request: &GenerationRequest) -> u64 {
    let size = SequenceSize {
        prompt_tokens: request.prompt.len() as u64,
        max_new: request.max_new.into(),
        logprobs: request.logprobs.into(),
        prompt_logprobs: request.prompt_logprobs.into(),
    };
    size.bytes()
}
