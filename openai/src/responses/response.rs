//! Response objects.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::items::{ItemBuilder, ItemStatus, OutputItem};
use super::settings::ResponseSettings;
use crate::answer_blocks::BlockKind;
use crate::answer_parts::{AnswerParts, Call};
use crate::body::values::JsonFields;
use crate::fingerprint::id_suffix;
use crate::input_line::CompletionRequest;
use crate::logprobs::{ChatTokenLogprob, Logprobs};
use crate::output::{FinishReason, Provenance, Usage, warnings};
use crate::stop::Answer;

/// A request, and what all of its response objects have in common.
#[derive(Debug, Clone)]
pub struct ResponseHead {
    pub request: Arc<CompletionRequest>,
    pub settings: Arc<ResponseSettings>,
    pub provenance: Provenance,
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// A response in the background whose prompt is not computed yet.
    Queued,
    InProgress,
    Completed,
    /// The answer ended at its maximum number of tokens.
    Incomplete,
    Failed,
    /// A client cancelled a response in the background.
    Cancelled,
}

/// A response object.
#[derive(Debug, Serialize)]
pub struct ResponseObject<'a> {
    id: String,
    object: &'static str,
    created_at: u64,
    pub status: ResponseStatus,
    /// Time at which the answer was complete, in seconds since 1970.
    pub completed_at: Option<u64>,
    pub error: Option<ResponseError>,
    incomplete_details: Option<IncompleteDetails>,
    model: &'a str,
    pub output: &'a [OutputItem],
    temperature: f32,
    top_p: f32,
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    echo: &'a JsonFields,
    /// Deviations from the request, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Reason for which a response failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResponseError {
    code: &'static str,
    message: String,
}

impl ResponseError {
    /// Creates an error of the server; `message` is a sentence.
    pub fn new(message: &str) -> ResponseError {
        ResponseError { code: "server_error", message: message.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct IncompleteDetails {
    reason: &'static str,
}

/// Token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputTokensDetails,
    output_tokens: u64,
    output_tokens_details: OutputTokensDetails,
    total_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct InputTokensDetails {
    cached_tokens: u64,
    /// Always 0: writing to the cache has no price.
    cache_write_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct OutputTokensDetails {
    reasoning_tokens: u64,
}

impl ResponseUsage {
    /// Converts the token counts of a chat completion.
    pub fn new(usage: &Usage) -> ResponseUsage {
        let cached_tokens = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
        let details = usage.completion_tokens_details;
        let reasoning_tokens = details.map_or(0, |details| details.reasoning_tokens);
        ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens },
            total_tokens: usage.total_tokens,
        }
    }
}

/// Returns the `id` of the response to a request.
pub fn response_id(request: &CompletionRequest) -> String {
    format!("resp_{}", id_suffix(&request.custom_id))
}

impl ResponseStatus {
    /// Returns the name in response objects.
    pub const fn name(self) -> &'static str {
        match self {
            ResponseStatus::Queued => "queued",
            ResponseStatus::InProgress => "in_progress",
            ResponseStatus::Completed => "completed",
            ResponseStatus::Incomplete => "incomplete",
            ResponseStatus::Failed => "failed",
            ResponseStatus::Cancelled => "cancelled",
        }
    }

    /// Returns the status of a response with this answer.
    pub fn from_answer(answer: &Answer) -> ResponseStatus {
        ResponseStatus::from_finish_reason(FinishReason::from_answer(answer))
    }

    /// Returns the status of a response whose answer ended for this reason.
    pub fn from_finish_reason(reason: FinishReason) -> ResponseStatus {
        match reason {
            FinishReason::Stop | FinishReason::ToolCalls => ResponseStatus::Completed,
            FinishReason::Length => ResponseStatus::Incomplete,
            FinishReason::Error => ResponseStatus::Failed,
        }
    }

    /// Returns the status of the last item.
    pub fn of_last_item(self) -> ItemStatus {
        match self {
            ResponseStatus::Completed => ItemStatus::Completed,
            _ => ItemStatus::Incomplete,
        }
    }
}

impl ResponseHead {
    /// Returns a response object without usage.
    pub fn response<'a>(
        &'a self,
        status: ResponseStatus,
        output: &'a [OutputItem],
    ) -> ResponseObject<'a> {
        let is_incomplete = status == ResponseStatus::Incomplete;
        let has_ended = !matches!(status, ResponseStatus::Queued | ResponseStatus::InProgress);
        ResponseObject {
            id: response_id(&self.request),
            object: "response",
            created_at: self.provenance.created,
            status,
            completed_at: None,
            error: None,
            incomplete_details: is_incomplete
                .then_some(IncompleteDetails { reason: "max_output_tokens" }),
            model: &self.provenance.model,
            output,
            temperature: self.request.sampling.temperature,
            top_p: self.request.sampling.top_p,
            usage: None,
            echo: &self.settings.echo,
            warnings: if has_ended { warnings(&self.request) } else { Vec::new() },
        }
    }

    /// Returns a builder of the response's items.
    pub fn item_builder(&self) -> ItemBuilder<'_> {
        let returns_encrypted_reasoning = self.settings.returns_encrypted_reasoning;
        ItemBuilder { request: &self.request, returns_encrypted_reasoning }
    }

    /// Returns the items of an answer.
    pub fn items(&self, answer: Answer) -> Vec<OutputItem> {
        let status = ResponseStatus::from_answer(&answer).of_last_item();
        let Answer { text, reasoning, calls, logprobs, .. } = answer;
        self.items_of_parts(
            AnswerParts { reasoning, content: text.unwrap_or_default(), calls },
            token_logprobs(logprobs),
            status,
        )
    }

    /// Returns the items of an answer with these parts. `logprobs` are those of its text, and
    /// `status` is that of its last item.
    pub(super) fn items_of_parts(
        &self,
        parts: AnswerParts,
        mut logprobs: Vec<ChatTokenLogprob>,
        status: ItemStatus,
    ) -> Vec<OutputItem> {
        let AnswerParts { reasoning, content: text, calls } = parts;
        let mut blocks = Vec::new();
        if !reasoning.is_empty() && !self.request.output.omits_reasoning {
            blocks.push((BlockKind::Reasoning, reasoning));
        }
        if !text.is_empty() || (blocks.is_empty() && calls.is_empty()) {
            blocks.push((BlockKind::Text, text));
        }
        let call = |(index, Call { name, arguments })| (BlockKind::Call { index, name }, arguments);
        blocks.extend(calls.into_iter().enumerate().map(call));
        let last = blocks.len().saturating_sub(1);
        let builder = self.item_builder();
        let item = |(index, (kind, text)): (usize, (BlockKind, String))| {
            let of_text =
                if kind == BlockKind::Text { std::mem::take(&mut logprobs) } else { Vec::new() };
            let status = if index == last { status } else { ItemStatus::Completed };
            builder.end(&kind, index, text, of_text, status)
        };
        blocks.into_iter().enumerate().map(item).collect()
    }
}

/// Returns the log-probabilities of tokens; none if they were not requested.
pub(super) fn token_logprobs(logprobs: Option<Logprobs>) -> Vec<ChatTokenLogprob> {
    logprobs.map_or_else(Vec::new, |logprobs| logprobs.into_chat().content)
}
