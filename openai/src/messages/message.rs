//! Answers as messages.

use serde::Serialize;
use serde_json::Value;

use crate::answer_parts::Call;
use crate::body::arguments::parse_arguments;
use crate::fingerprint::{call_id, id_suffix};
use crate::input_line::CompletionRequest;
use crate::output::{FinishReason, Usage, warnings};
use crate::stop::Answer;

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnthropicMessage {
    pub id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    pub model: String,
    pub content: Vec<ContentBlock>,
    /// Null in the first event of a stream.
    pub stop_reason: Option<StopReason>,
    /// Stop sequence before which the text was cut.
    pub stop_sequence: Option<String>,
    pub usage: MessageUsage,
    /// Deviations from the request, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A block of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    Thinking {
        thinking: String,
        signature: String,
    },
    Text {
        text: String,
        /// Always null, since no document is cited; the type of the API requires the field.
        citations: Option<()>,
    },
    ToolUse {
        id: String,
        name: String,
        /// Object of arguments.
        input: Value,
    },
}

impl ContentBlock {
    /// Creates a block of text.
    pub fn text(text: String) -> ContentBlock {
        ContentBlock::Text { text, citations: None }
    }
}

/// Reason for which an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

impl StopReason {
    /// Returns the reason for which an answer without an error ended.
    pub fn from_answer(answer: &Answer) -> StopReason {
        match FinishReason::from_answer(answer) {
            FinishReason::Length => StopReason::MaxTokens,
            FinishReason::ToolCalls => StopReason::ToolUse,
            FinishReason::Stop if answer.stop_string.is_some() => StopReason::StopSequence,
            FinishReason::Stop | FinishReason::Error => StopReason::EndTurn,
        }
    }
}

/// Token counts. Those of the prompt are divided into cached and computed ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MessageUsage {
    /// Number of tokens of the prompt that were computed.
    pub input_tokens: u64,
    /// Always 0: writing to the cache has no price.
    cache_creation_input_tokens: u64,
    /// Number of tokens of the prompt whose keys and values were cached.
    pub cache_read_input_tokens: u64,
    pub output_tokens: u64,
    /// Present if reasoning is separated from answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens_details: Option<OutputTokensDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct OutputTokensDetails {
    thinking_tokens: u64,
}

impl MessageUsage {
    /// Converts the token counts of a chat completion.
    pub fn new(usage: &Usage) -> MessageUsage {
        let cached = usage.prompt_tokens_details.map_or(0, |details| details.cached_tokens);
        let details = usage.completion_tokens_details;
        MessageUsage {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
            output_tokens_details: details
                .map(|details| OutputTokensDetails { thinking_tokens: details.reasoning_tokens }),
        }
    }
}

/// Returns the `id` of the answer to a request.
pub fn message_id(request: &CompletionRequest) -> String {
    format!("msg_{}", id_suffix(&request.custom_id))
}

/// Returns the signature of reasoning in the answer to a request. Clients send it back unchanged,
/// and it is not verified.
pub(super) fn thinking_signature(request: &CompletionRequest) -> String {
    id_suffix(&format!("{}\nthinking", request.custom_id))
}

/// Returns the identifier of a tool call in the answer to a request.
pub(super) fn tool_use_id(request: &CompletionRequest, index: usize) -> String {
    call_id(&request.custom_id, 0, index)
}

impl AnthropicMessage {
    /// Creates a message without content, as in the first event of a stream.
    pub fn empty(
        request: &CompletionRequest,
        model: &str,
        usage: MessageUsage,
    ) -> AnthropicMessage {
        AnthropicMessage {
            id: message_id(request),
            kind: "message",
            role: "assistant",
            model: model.to_owned(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
            warnings: Vec::new(),
        }
    }

    /// Creates the message of an answer without an error.
    pub fn new(
        request: &CompletionRequest,
        model: &str,
        answer: Answer,
        usage: &Usage,
    ) -> AnthropicMessage {
        let stop_reason = Some(StopReason::from_answer(&answer));
        let Answer { text, reasoning, calls, stop_string, .. } = answer;
        let stop_sequence = stop_string.filter(|_| stop_reason == Some(StopReason::StopSequence));
        let mut content = Vec::new();
        if !reasoning.is_empty() && !request.output.omits_reasoning {
            let signature = thinking_signature(request);
            content.push(ContentBlock::Thinking { thinking: reasoning, signature });
        }
        content.extend(text.filter(|text| !text.is_empty()).map(ContentBlock::text));
        content.extend(calls.into_iter().enumerate().map(|(index, Call { name, arguments })| {
            let id = tool_use_id(request, index);
            // A text that is not an object cannot be represented.
            let input = Some(parse_arguments(&arguments)).filter(Value::is_object);
            ContentBlock::ToolUse {
                id,
                name,
                input: input.unwrap_or_else(|| Value::Object(<_>::default())),
            }
        }));
        AnthropicMessage {
            content,
            stop_reason,
            stop_sequence,
            warnings: warnings(request),
            ..AnthropicMessage::empty(request, model, MessageUsage::new(usage))
        }
    }
}
