//! The lines of the output.
//!
//! A line depends on its question and on what the model says, never on when or beside what it was
//! computed: that is what makes a resumed file equal to an undisturbed one.

use serde::{Deserialize, Serialize};

use super::item::{Question, Shown};
use crate::boundary::engine::Logprob;
use crate::openai::item::{ErrorCode, LineError, Rejection};
use crate::openai::output::ErrorBody;

/// One line of the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreLine {
    pub custom_id: String,
    /// One for each continuation, in their order.
    pub scores: Option<Vec<Score>>,
    pub error: Option<ErrorBody>,
    /// Hash of the question as the model saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// As of the answers of a batch job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
}

/// What a model makes of a continuation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// The sum of those of its tokens.
    pub logprob: f64,
    pub token_logprobs: Vec<f32>,
    /// Whether each of its tokens is the most likely one, of equally likely ones the lowest.
    pub greedy: bool,
    /// Its tokens, where they are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// The most likely tokens in the place of each, the most likely first, with their
    /// log-probabilities, where they are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<Vec<(u32, f32)>>>,
}

impl Score {
    /// Of a continuation of which `found` has `shown.logprobs()` entries for each token, its own
    /// first; `None` where they are no finite numbers.
    pub fn new(found: &[Logprob], shown: Shown) -> Option<Score> {
        let width = usize::from(shown.logprobs());
        let places = || found.chunks(width);
        let token_logprobs: Vec<f32> = places().map(|place| place[0].logprob).collect();
        let logprob: f64 = token_logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
        let top = |place: &[Logprob]| -> Vec<(u32, f32)> {
            let told = place[1..].iter().take(shown.top.into());
            // A token that cannot follow has a log-probability that JSON has no number for.
            let possible = told.filter(|one| one.logprob.is_finite());
            possible.map(|one| (one.token, one.logprob)).collect()
        };
        logprob.is_finite().then(|| Score {
            logprob,
            token_logprobs,
            greedy: places().all(|place| place[0].token == place[1].token),
            tokens: shown.tokens.then(|| places().map(|place| place[0].token).collect()),
            top_logprobs: (shown.top > 0).then(|| places().map(top).collect()),
        })
    }
}

/// The line of a question of which a continuation's logits are not finite, newline included.
pub fn not_finite_line(question: &Question, continuation: usize) -> Vec<u8> {
    let message = format!(
        "The model's logits for continuation {} are no finite numbers; its weights may be \
         damaged, or too large for this --dtype.",
        continuation + 1
    );
    let rejection = Rejection::new(ErrorCode::NotFinite, message);
    let (line, custom_id) = (question.line, question.custom_id.clone());
    error_line(&LineError { line, custom_id, rejection })
}

/// The line of a question whose continuations are scored, newline included.
pub fn score_line(
    question: &Question,
    scores: Vec<Score>,
    shown: Shown,
    system_fingerprint: &str,
) -> Vec<u8> {
    to_bytes(&ScoreLine {
        custom_id: question.custom_id.clone(),
        scores: Some(scores),
        error: None,
        request_id: Some(question.request_id(shown)),
        system_fingerprint: Some(system_fingerprint.to_owned()),
    })
}

/// The line of a question that cannot be asked, newline included.
pub fn error_line(error: &LineError) -> Vec<u8> {
    to_bytes(&ScoreLine {
        custom_id: error.custom_id.clone(),
        scores: None,
        error: Some(ErrorBody::of(error)),
        request_id: None,
        system_fingerprint: None,
    })
}

fn to_bytes(line: &ScoreLine) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("numbers, texts and lists always serialise");
    bytes.push(b'\n');
    bytes
}
