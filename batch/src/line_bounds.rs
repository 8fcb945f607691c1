//! Bounds on the lines of a job whose input its user does not vouch for: those of a batch that a
//! client of a server has sent.

use engine_api::codec::TextCodec;
use openai::body::Body;
use openai::bounded_json::{JsonBounds, parse_bounded_object};
use openai::input_line::{BatchEndpoint, CompletionRequest, ErrorCode, Rejection};
use openai::prompt_bounds::PromptBounds;
use serde_json::{Map, Value};

use super::answer_size::request_bytes;

/// Bounds on every line of a job. A line that exceeds one becomes an error line.
#[derive(Debug, Clone)]
pub struct LineBounds {
    /// Endpoint of all lines, which must be in batch format.
    pub endpoint: BatchEndpoint,
    /// Names of the model, at least one; a line may not name another model.
    pub model_names: Vec<String>,
    /// Maximum size of a line, in bytes.
    pub max_bytes: usize,
    /// Maximum number of JSON values in a line.
    pub max_values: usize,
    /// Maximum number of answers to a line.
    pub max_answers: usize,
    /// Maximum memory for the answers to a line, in bytes.
    pub max_answer_bytes: u64,
    pub prompts: PromptBounds,
    /// Maximum number of threads that read lines.
    pub max_threads: usize,
}

impl LineBounds {
    /// Parses a line as a JSON object.
    ///
    /// # Errors
    /// Returns a rejection if the line is too large or is not a JSON object.
    pub(crate) fn parse_object(
        &self,
        text: &str,
        example: &str,
    ) -> Result<Map<String, Value>, Rejection> {
        if text.len() > self.max_bytes {
            let message =
                format!("The line must not exceed {} bytes, got {}.", self.max_bytes, text.len());
            return Err(Rejection::new(ErrorCode::InvalidValue, message));
        }
        let bounds = JsonBounds { max_values: self.max_values, is_skipped: |_| false };
        parse_bounded_object(text, "line", example, bounds)
    }

    /// Checks the endpoint and the model of a line.
    ///
    /// # Errors
    /// Returns a rejection if they are not those of the batch.
    pub(crate) fn check_target(
        &self,
        endpoint: BatchEndpoint,
        body: &Map<String, Value>,
    ) -> Result<(), Rejection> {
        if endpoint != self.endpoint {
            let [expected, found] = [self.endpoint, endpoint].map(BatchEndpoint::url);
            let message = format!(
                "Invalid value for 'url': must be \"{expected}\", the endpoint of the batch, got \
                 \"{found}\"."
            );
            return Err(Rejection::new(ErrorCode::UnsupportedUrl, message));
        }
        match body.get("model") {
            Some(Value::String(name)) if !self.model_names.contains(name) => {
                let shown: String = name.chars().take(100).collect();
                let served = self.model_names.first().map_or("", String::as_str);
                let message =
                    format!("The model `{shown}` does not exist. This server serves `{served}`.");
                Err(Rejection::new(ErrorCode::ModelNotFound, message).with_param("model"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a body before its prompts are tokenised.
    ///
    /// # Errors
    /// Returns a rejection if there are too many answers, or if a prompt is certainly too long.
    pub(super) fn check_body(
        &self,
        body: &Body,
        codec: Option<&dyn TextCodec>,
    ) -> Result<(), Rejection> {
        let answers = body.prompts.len().saturating_mul(body.n);
        if answers > self.max_answers {
            let message = format!(
                "The request asks for {answers} choices, but this server accepts at most {} at a \
                 time. Reduce 'n' or the number of prompts.",
                self.max_answers
            );
            return Err(Rejection::new(ErrorCode::InvalidValue, message).with_param("n"));
        }
        self.prompts.check_body(body, codec)
    }

    /// Checks a request that is tokenised.
    ///
    /// # Errors
    /// Returns a rejection if its answers may need too much memory.
    pub(super) fn check_request(&self, request: &CompletionRequest) -> Result<(), Rejection> {
        let bytes = request_bytes(request);
        if bytes <= self.max_answer_bytes {
            return Ok(());
        }
        let message = format!(
            "The answers may require {} MiB of memory, but the server allows {} MiB. Request fewer \
             choices, tokens or log-probabilities.",
            bytes.div_ceil(1 << 20),
            self.max_answer_bytes >> 20
        );
        Err(Rejection::new(ErrorCode::InvalidValue, message))
    }
}
