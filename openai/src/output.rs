//! Lines of the output: OpenAI's batch output format, with `token_ids` in each choice.
//!
//! A line depends on its request and on the model's answer, and neither on the time nor on other
//! requests. Therefore a resumed file equals an uninterrupted one.

use engine_api::event::FinishCause;
use grammar::Grammar;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::fingerprint::{id_suffix, request_id};
use super::input_line::{CompletionRequest, Endpoint, LineError};
use super::logprobs::{ChatLogprobs, Logprobs, TextLogprobs};
use super::prompt_logprobs::PromptLogprobs;
use super::stop::Answer;
use super::tool_calls::render::{ToolCall, tool_calls};

pub use crate::usage::{CompletionDetails, PromptDetails, Usage};

/// Fields that all lines of a job share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// Modification time of the input, in seconds since 1970; 0 for a pipe.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
}

/// A line of the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputLine<B = ResponseBody> {
    pub id: String,
    pub custom_id: String,
    /// Unknown fields of a short line.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub columns: Map<String, Value>,
    pub response: Option<Response<B>>,
    pub error: Option<ErrorBody>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response<B = ResponseBody> {
    pub status_code: u16,
    /// Hash of the request as the model saw it; see [`request_id`].
    pub request_id: String,
    /// Fingerprint of the system, if the body has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    pub body: B,
}

/// OpenAI's completion object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseBody {
    pub id: String,
    pub object: String,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    pub choices: Vec<Choice>,
    pub usage: Usage,
    /// Log-probabilities of a chat's prompt, null if none were requested. Those of completions are
    /// in the choices, as in vLLM.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Option<PromptLogprobs>>,
    /// Token ids of a chat's prompt, null if they were not requested.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Option<Vec<u32>>>,
    /// Deviations from the request, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Deserializes a field whose null differs from a missing field.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// An answer: `text` for completions, which is empty without a tokenizer, and `message` for chats.
/// Reasoning before the answer is in `reasoning_content`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    Chat {
        index: usize,
        message: Message,
        token_ids: Vec<u32>,
        finish_reason: FinishReason,
        logprobs: Option<ChatLogprobs>,
        /// See [`Answer::error`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Text {
        index: usize,
        text: String,
        /// Reasoning, if a raw prompt became a chat.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<String>,
        token_ids: Vec<u32>,
        finish_reason: FinishReason,
        logprobs: Option<TextLogprobs>,
        /// Log-probabilities of the prompt, null if none were requested, as in vLLM.
        #[serde(default)]
        prompt_logprobs: Option<PromptLogprobs>,
        /// Token ids of the prompt, null if they were not requested.
        #[serde(default)]
        prompt_token_ids: Option<Vec<u32>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// The assistant's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    pub content: Option<String>,
    /// Always null, since no answer is a refusal; OpenAI's schema requires the field.
    #[serde(default)]
    pub refusal: Option<()>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// Reason for which an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// An end-of-sequence token after tool calls.
    ToolCalls,
    /// The answer is not what was requested; `error` states the reason.
    Error,
}

impl FinishReason {
    /// Returns the reason for which an answer ended.
    pub fn from_answer(answer: &Answer) -> FinishReason {
        match answer.finish {
            _ if answer.error.is_some() => FinishReason::Error,
            FinishCause::Stop if answer.ended_with_eos && !answer.calls.is_empty() => {
                FinishReason::ToolCalls
            }
            FinishCause::Stop => FinishReason::Stop,
            FinishCause::Length => FinishReason::Length,
            FinishCause::NotFinite => FinishReason::Error,
        }
    }

    /// Returns the value in the output.
    pub const fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Error => "error",
        }
    }
}

/// Reason for which a request has no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBody {
    /// Name of a [`super::item::ErrorCode`], or [`UNFINISHED`].
    pub code: String,
    /// Sentence that begins with the line number.
    pub message: String,
    /// Line of the input, from 1.
    pub line: usize,
    /// Answers that are available, if the request has only some of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Box<PartialResponse>>,
}

/// Answers to a request that are stored until all of them are available.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartialResponse {
    /// Hash of the request; see [`Response::request_id`].
    pub request_id: String,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    pub choices: Vec<FinishedChoice>,
}

/// A choice, and values that are reported for all choices together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishedChoice {
    pub choice: Choice,
    pub completion_tokens: u64,
    /// Number of generated tokens that belong to the reasoning.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// Log-probabilities of a chat's prompt, with the first choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

impl Choice {
    /// Returns the index of the choice.
    pub fn index(&self) -> usize {
        match self {
            Choice::Chat { index, .. } | Choice::Text { index, .. } => *index,
        }
    }

    /// Returns the reason for which the choice ended.
    pub fn finish_reason(&self) -> FinishReason {
        match self {
            Choice::Chat { finish_reason, .. } | Choice::Text { finish_reason, .. } => {
                *finish_reason
            }
        }
    }
}

/// Facts about the answers to a request that users should know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completion {
    /// An answer ended at its maximum number of tokens, although it could have ended by itself.
    pub is_truncated: bool,
    /// An answer ended with an error, such as a violated grammar.
    pub has_failed: bool,
}

impl Completion {
    /// Summarises the choices of an answered request.
    pub fn from_choices(request: &CompletionRequest, choices: &[Choice]) -> Completion {
        let is_length_limited = |choice: &Choice| {
            choice.finish_reason() == FinishReason::Length
                && request.prompt_of(choice.index()).max_new > 0
        };
        Completion {
            is_truncated: !request.ignore_eos && choices.iter().any(is_length_limited),
            has_failed: choices.iter().any(|choice| choice.finish_reason() == FinishReason::Error),
        }
    }
}

/// Converts one of a request's answers to a choice, without the log-probabilities of the prompt.
pub fn finish_choice(request: &CompletionRequest, index: usize, answer: Answer) -> FinishedChoice {
    let [completion_tokens, reasoning_tokens] =
        [answer.generated, answer.reasoning_tokens].map(u64::from);
    let choice = build_choice(request, index, answer);
    FinishedChoice { choice, completion_tokens, reasoning_tokens, prompt_logprobs: None }
}

/// Returns the line of a request with its answers, those to the first prompt first, and the facts
/// about them. The line includes its newline.
pub fn answer_line(
    request: &CompletionRequest,
    answers: Vec<FinishedChoice>,
    provenance: &Provenance,
) -> (Vec<u8>, Completion) {
    let body = response_body(request, answers, provenance);
    let completion = Completion::from_choices(request, &body.choices);
    let request_id = request_id(request);
    let response = Response { status_code: 200, request_id, system_fingerprint: None, body };
    (line_with_response(request, response), completion)
}

/// Returns the line of a request with a response, newline included.
pub fn line_with_response<B: Serialize>(
    request: &CompletionRequest,
    response: Response<B>,
) -> Vec<u8> {
    to_bytes(&OutputLine {
        id: format!("batch_req_{}", id_suffix(&request.custom_id)),
        custom_id: request.custom_id.clone(),
        columns: request.columns.clone(),
        response: Some(response),
        error: None,
    })
}

/// Returns the body of a response with the answers to a request, those to the first prompt first.
pub fn response_body(
    request: &CompletionRequest,
    mut answers: Vec<FinishedChoice>,
    provenance: &Provenance,
) -> ResponseBody {
    let chat = request.endpoint == Endpoint::ChatCompletions;
    let completion_tokens = answers.iter().map(|done| done.completion_tokens).sum();
    let prompt_logprobs = answers.iter_mut().find_map(|done| done.prompt_logprobs.take());
    ResponseBody {
        id: body_id(request),
        object: if chat { "chat.completion" } else { "text_completion" }.to_owned(),
        created: provenance.created,
        model: provenance.model.clone(),
        system_fingerprint: provenance.system_fingerprint.clone(),
        choices: answers.into_iter().map(|done| done.choice).collect(),
        usage: Usage::new(prompt_tokens(request), completion_tokens),
        prompt_logprobs: chat.then_some(prompt_logprobs),
        prompt_token_ids: chat.then(|| prompt_token_ids(request, 0)),
        warnings: warnings(request),
    }
}

/// Returns the deviations from the request, one sentence each.
pub fn warnings(request: &CompletionRequest) -> Vec<String> {
    let unheld = request.grammar.as_deref().map(Grammar::unenforced).unwrap_or_default();
    request.warnings.iter().cloned().chain(unheld).collect()
}

/// Returns the token ids of the prompt of an answer if they are requested.
pub fn prompt_token_ids(request: &CompletionRequest, choice: usize) -> Option<Vec<u32>> {
    request.returns_token_ids.then(|| request.prompt_of(choice).tokens.to_vec())
}

/// Returns the `id` of the answers to a request.
pub fn body_id(request: &CompletionRequest) -> String {
    let chat = request.endpoint == Endpoint::ChatCompletions;
    format!("{}-{}", if chat { "chatcmpl" } else { "cmpl" }, id_suffix(&request.custom_id))
}

/// Returns the number of tokens of all prompts of a request.
pub fn prompt_tokens(request: &CompletionRequest) -> u64 {
    request.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum()
}

/// Returns the line of a request for which only some answers are available, newline included.
pub fn unfinished_line(
    request: &CompletionRequest,
    choices: Vec<FinishedChoice>,
    provenance: &Provenance,
) -> Vec<u8> {
    let partial = PartialResponse {
        request_id: request_id(request),
        created: provenance.created,
        model: provenance.model.clone(),
        system_fingerprint: provenance.system_fingerprint.clone(),
        choices,
    };
    let (there, all) = (partial.choices.len(), request.choice_count());
    to_bytes(&OutputLine::<ResponseBody> {
        id: format!("batch_req_{}", id_suffix(&request.custom_id)),
        custom_id: request.custom_id.clone(),
        columns: Map::new(),
        response: None,
        error: Some(ErrorBody {
            code: UNFINISHED.to_owned(),
            message: format!(
                "Line {}: the run ended after {there} of {all} answers to this request. Run the \
                 same command with --resume to compute the others.",
                request.line
            ),
            line: request.line,
            made: Some(Box::new(partial)),
        }),
    })
}

/// `code` of the line of a request for which only some answers are available.
pub const UNFINISHED: &str = "unfinished";

fn build_choice(request: &CompletionRequest, index: usize, answer: Answer) -> Choice {
    let finish_reason = FinishReason::from_answer(&answer);
    let Answer { text, reasoning, calls, token_ids, logprobs, error, .. } = answer;
    let is_shown = |reasoning: &String| !reasoning.is_empty() && !request.output.omits_reasoning;
    let reasoning_content = Some(reasoning).filter(is_shown);
    if request.endpoint == Endpoint::ChatCompletions {
        let tool_calls = tool_calls(&request.custom_id, index, calls);
        let role = "assistant".to_owned();
        let content = text;
        let message = Message { role, reasoning_content, content, refusal: None, tool_calls };
        let logprobs = logprobs.map(Logprobs::into_chat);
        Choice::Chat { index, message, token_ids, finish_reason, logprobs, error }
    } else {
        let logprobs = logprobs.map(Logprobs::into_text);
        let text = text.unwrap_or_default();
        let prompt_token_ids = prompt_token_ids(request, index);
        Choice::Text {
            index,
            text,
            reasoning_content,
            token_ids,
            finish_reason,
            logprobs,
            prompt_logprobs: None,
            prompt_token_ids,
            error,
        }
    }
}

/// Returns the line of a request that cannot be answered, newline included.
pub fn error_line(error: &LineError) -> Vec<u8> {
    to_bytes(&OutputLine::<ResponseBody> {
        id: format!("batch_req_{}", id_suffix(&format!("{}\n{}", error.custom_id, error.line))),
        custom_id: error.custom_id.clone(),
        columns: Map::new(),
        response: None,
        error: Some(ErrorBody::from_line_error(error)),
    })
}

impl ErrorBody {
    /// Creates the error of a line that has no answer.
    pub fn from_line_error(error: &LineError) -> ErrorBody {
        ErrorBody {
            code: error.rejection.code.name().to_owned(),
            message: format!("Line {}: {}", error.line, error.rejection.message),
            line: error.line,
            made: None,
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn to_bytes<B: Serialize>(line: &OutputLine<B>) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("numbers, texts and lists always serialise");
    bytes.push(b'\n');
    bytes
}
