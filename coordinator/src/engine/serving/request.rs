//! What the workers are told of a submission.

use workers::shared::group::Request;

use crate::boundary::serving::Submission;

/// A submission as a request without a form.
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
