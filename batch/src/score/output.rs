//! The lines of the output.
//!
//! A line depends on its question and the model, never on when it was computed or with which
//! others: a resumed file is therefore equal to an undisturbed one.

use engine_api::event::Logprob;
use openai::input_line::{ErrorCode, LineError, Rejection};
use openai::output::ErrorBody;
use serde::{Deserialize, Serialize};

use super::question::{ScoreDetails, ScoreQuestion};

/// One line of the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreLine {
    pub custom_id: String,
    /// One score for each continuation, in their order.
    pub scores: Option<Vec<Score>>,
    pub error: Option<ErrorBody>,
    /// Hash of the question as the model saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// System fingerprint, computed as in the answers of a batch job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
}

/// Score of a continuation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Sum of the log-probabilities of its tokens.
    pub logprob: f64,
    pub token_logprobs: Vec<f32>,
    /// True if each of its tokens is the most likely one, with ties resolved to the lowest ID.
    pub greedy: bool,
    /// Its tokens, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// The most likely tokens at each position, in descending order, with their log-probabilities,
    /// if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<Vec<(u32, f32)>>>,
}

impl Score {
    /// Creates the score of a continuation from `found`, which has `shown.logprobs()` entries for
    /// each token, its own first; returns `None` if its log-probability is not finite.
    pub fn new(found: &[Logprob], details: ScoreDetails) -> Option<Score> {
        let width = usize::from(details.logprobs());
        let places = || found.chunks(width);
        let token_logprobs: Vec<f32> = places().map(|place| place[0].logprob).collect();
        let logprob: f64 = token_logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
        let top = |place: &[Logprob]| -> Vec<(u32, f32)> {
            let likely = place[1..].iter().take(details.top.into());
            // A token that cannot follow has an infinite log-probability, which JSON cannot
            // represent.
            let possible = likely.filter(|candidate| candidate.logprob.is_finite());
            possible.map(|candidate| (candidate.token, candidate.logprob)).collect()
        };
        logprob.is_finite().then(|| Score {
            logprob,
            token_logprobs,
            greedy: places().all(|place| place[0].token == place[1].token),
            tokens: details.tokens.then(|| places().map(|place| place[0].token).collect()),
            top_logprobs: (details.top > 0).then(|| places().map(top).collect()),
        })
    }
}

/// Returns the error line of a question with a continuation whose logits are not finite, newline
/// included.
pub fn not_finite_line(question: &ScoreQuestion, continuation: usize) -> Vec<u8> {
    let message = format!(
        "The model's logits for continuation {} contain infinities or NaN. Its weights may \
         be damaged, or too large for this --dtype.",
        continuation + 1
    );
    let rejection = Rejection::new(ErrorCode::NotFinite, message);
    let (line, custom_id) = (question.line, question.custom_id.clone());
    error_line(&LineError { line, custom_id, rejection })
}

/// Returns the line of a scored question, newline included.
pub fn score_line(
    question: &ScoreQuestion,
    scores: Vec<Score>,
    details: ScoreDetails,
    system_fingerprint: &str,
) -> Vec<u8> {
    to_bytes(&ScoreLine {
        custom_id: question.custom_id.clone(),
        scores: Some(scores),
        error: None,
        request_id: Some(question.request_id(details)),
        system_fingerprint: Some(system_fingerprint.to_owned()),
    })
}

/// Returns the line of an invalid question, newline included.
pub fn error_line(error: &LineError) -> Vec<u8> {
    to_bytes(&ScoreLine {
        custom_id: error.custom_id.clone(),
        scores: None,
        error: Some(ErrorBody::from_line_error(error)),
        request_id: None,
        system_fingerprint: None,
    })
}

fn to_bytes(line: &ScoreLine) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("numbers, texts and lists always serialise");
    bytes.push(b'\n');
    bytes
}
