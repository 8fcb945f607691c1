//! Requests for an engine.

use std::sync::Arc;

use engine_api::request::{AnswerGrammar, GenerationRequest, Priority};

use super::fingerprint::sampling_id;
use super::input_line::CompletionRequest;

/// Returns what an engine has to generate for one of the answers to a request.
pub fn generation_request(
    request: &CompletionRequest,
    choice: usize,
    grammar: AnswerGrammar,
) -> GenerationRequest {
    let prompt = request.prompt_of(choice);
    GenerationRequest {
        prompt: Arc::clone(&prompt.tokens),
        max_new: prompt.engine_max_new(),
        sampling: request.sampling,
        token_rules: request.token_rules.clone(),
        seed: request.seed,
        id_hash: sampling_id(request, choice),
        ignore_eos: request.ignore_eos,
        any_logits: false,
        logprobs: request.logprobs_per_token(),
        prompt_logprobs: request.logprobs_per_prompt_token(),
        prompt_logprobs_from: 1,
        pooling: None,
        grammar,
        prediction: request.prediction.clone(),
        priority: Priority::Interactive,
    }
}
