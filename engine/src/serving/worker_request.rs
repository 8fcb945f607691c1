//! Conversion of submissions into the requests of the workers.

use engine_api::serving::GenerationRequest;
use protocol::group::SequenceRequest;

/// Returns a submission as a request without a grammar.
pub(super) fn worker_request(submission: GenerationRequest) -> SequenceRequest {
    let GenerationRequest {
        prompt,
        max_new,
        sampling,
        token_rules,
        seed,
        id_hash,
        ignore_eos,
        logprobs,
        ..
    } = submission;
    SequenceRequest {
        prompt,
        max_new,
        sampling,
        token_rules,
        seed,
        id_hash,
        ignore_eos,
        any_logits: false,
        logprobs,
        grammar: 0,
    }
}
