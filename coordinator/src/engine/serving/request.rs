//! Conversion of submissions into the requests of the workers.

use workers::shared::group::Request;

use crate::boundary::serving::Submission;

/// Returns a submission as a request without a grammar.
pub(super) fn request(submission: Submission) -> Request {
    let Submission { prompt, max_new, sampling, seed, id_hash, ignore_eos, logprobs, .. } =
        submission;
    Request {
        prompt,
        max_new,
        sampling,
        seed,
        id_hash,
        ignore_eos,
        any_logits: false,
        logprobs,
        grammar: 0,
    }
}
