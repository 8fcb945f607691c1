//! Conversion of submissions into the requests of the workers.

use engine_api::serving::GenerationRequest;
use protocol::group::SequenceRequest;

/// Returns a submission as a request without a grammar.
pub(super) fn worker_request(submission: GenerationRequest) -> SequenceRequest {
    SequenceRequest {
        prompt: submission.prompt,
        max_new: submission.max_new,
        sampling: submission.sampling,
        token_rules: submission.token_rules,
        seed: submission.seed,
        id_hash: submission.id_hash,
        ignore_eos: submission.ignore_eos,
        any_logits: false,
        logprobs: submission.logprobs,
        grammar: 0,
    }
}
