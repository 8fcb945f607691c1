//! Lines of the output of a job of embeddings, in OpenAI's batch format.

use serde::{Deserialize, Serialize};

use super::request::EmbeddingRequest;
use super::response::EmbeddingList;
use crate::fingerprint::id_suffix;
use crate::input_line::{ErrorCode, LineError, Rejection};
use crate::output::{ErrorBody, error_line};

/// A line of the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingLine {
    pub id: String,
    pub custom_id: String,
    pub response: Option<EmbeddingResponse>,
    pub error: Option<ErrorBody>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingResponse {
    pub status_code: u16,
    /// Hash of the request as the model saw it; see [`EmbeddingRequest::request_id`].
    pub request_id: String,
    pub body: EmbeddingList,
}

/// Returns the output line of a request, newline included.
pub fn embedding_line(request: &EmbeddingRequest, body: EmbeddingList) -> Vec<u8> {
    let line = EmbeddingLine {
        id: format!("batch_req_{}", id_suffix(&request.custom_id)),
        custom_id: request.custom_id.clone(),
        response: Some(EmbeddingResponse {
            status_code: 200,
            request_id: request.request_id(),
            body,
        }),
        error: None,
    };
    let mut bytes = serde_json::to_vec(&line).expect("numbers, texts and lists always serialise");
    bytes.push(b'\n');
    bytes
}

/// Returns the rejection of an input whose hidden states are not finite.
pub fn not_finite(input: usize) -> Rejection {
    let message = format!(
        "The model's hidden states for input {input} contain infinities or NaN, or only zeros. Its \
         weights may be damaged, or too large for this --dtype."
    );
    Rejection::new(ErrorCode::NotFinite, message)
}

/// Returns the error line of a request with an input whose hidden states are not finite, newline
/// included.
pub fn not_finite_line(request: &EmbeddingRequest, input: usize) -> Vec<u8> {
    let (line, custom_id) = (request.line, request.custom_id.clone());
    error_line(&LineError { line, custom_id, rejection: not_finite(input) })
}
