//! The lines of the output: OpenAI's batch output format, with `token_ids` in each choice.
//!
//! A line depends on its request and on what the model said, never on when or beside what it ran:
//! that is what makes a resumed file equal to an undisturbed one.

use grammar::Grammar;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::calls::told::{ToolCall, tool_calls};
use super::fingerprint::{id_suffix, request_id};
use super::item::{Endpoint, LineError, Request};
use super::logprobs::{ChatLogprobs, Logprobs, TextLogprobs};
use super::prompt_logprobs::PromptLogprobs;
use super::stop::Answer;
use crate::boundary::engine::Finish;

/// What every line of a job shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// Modification time of the input, seconds since 1970; 0 for a pipe.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
}

/// One line of the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputLine {
    pub id: String,
    pub custom_id: String,
    /// Fields of a short line that are none of a request.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub columns: Map<String, Value>,
    pub response: Option<Response>,
    pub error: Option<ErrorBody>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Response {
    pub status_code: u16,
    /// Hash of the request as the model saw it; see [`request_id`].
    pub request_id: String,
    pub body: ResponseBody,
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
    /// Chats: those of the conversation, null where none were requested. The choices of
    /// completions have those of their prompts, as in vLLM.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Option<PromptLogprobs>>,
    /// Chats: the conversation, null where it was not requested.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Option<Vec<u32>>>,
    /// What of the request was not done as it says, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Reads a field that may be null as one that is present.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// One answer: `text` for completions (empty without tokenizer), `message` for chat. What a model
/// thinks before it answers a chat is told as `reasoning_content`.
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
        /// Of a raw prompt that became a chat.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<String>,
        token_ids: Vec<u32>,
        finish_reason: FinishReason,
        logprobs: Option<TextLogprobs>,
        /// Null where none were requested, as in vLLM.
        #[serde(default)]
        prompt_logprobs: Option<PromptLogprobs>,
        /// Null where they were not requested.
        #[serde(default)]
        prompt_token_ids: Option<Vec<u32>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// The assistant's turn.
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

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model's end-of-sequence token, or a stop string.
    Stop,
    /// `max_tokens`, or the end of the context.
    Length,
    /// The same as `Stop`, behind calls of functions.
    ToolCalls,
    /// It is not what was asked for; `error` says why.
    Error,
}

impl FinishReason {
    /// Of an answer.
    pub fn of(answer: &Answer) -> FinishReason {
        match answer.finish {
            _ if answer.error.is_some() => FinishReason::Error,
            Finish::Stop if answer.ends_by_itself && !answer.calls.is_empty() => {
                FinishReason::ToolCalls
            }
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::NotFinite => FinishReason::Error,
        }
    }

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Error => "error",
        }
    }
}

/// Token counts over all choices of a request, as OpenAI has them: what was generated, also where
/// it is not part of the answer (a stop string, the end-of-sequence token).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// Only a server tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptDetails>,
}

/// What is said of the tokens of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptDetails {
    /// Those whose keys and values were there already.
    pub cached_tokens: u64,
}

impl Usage {
    /// Of so many tokens of prompts and of answers.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Usage {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: None,
        }
    }

    /// The same, with what was cached of the prompts.
    #[must_use]
    pub fn with_cached(self, cached_tokens: u64) -> Usage {
        Usage { prompt_tokens_details: Some(PromptDetails { cached_tokens }), ..self }
    }
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBody {
    /// A name of [`super::item::ErrorCode`].
    pub code: String,
    /// A sentence that begins with the line number.
    pub message: String,
    /// Line of the input, from 1.
    pub line: usize,
    /// Of a request of which not all answers are there: those that are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<Box<PartialAnswer>>,
}

/// Answers to a request that are kept until it has all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartialAnswer {
    /// As in a [`Response`].
    pub request_id: String,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    pub choices: Vec<Done>,
}

/// A choice with what only the sum over all choices tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    pub choice: Choice,
    pub completion_tokens: u64,
    /// Of the first choice of a chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

impl Choice {
    /// Its place among the choices.
    pub fn index(&self) -> usize {
        match self {
            Choice::Chat { index, .. } | Choice::Text { index, .. } => *index,
        }
    }

    /// Why it ended.
    pub fn finish_reason(&self) -> FinishReason {
        match self {
            Choice::Chat { finish_reason, .. } | Choice::Text { finish_reason, .. } => {
                *finish_reason
            }
        }
    }
}

/// What is to be told of the answers to a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completion {
    /// One ended at its largest number of tokens, where it might have ended by itself.
    pub cut: bool,
    /// One ended without the form that it must have.
    pub failed: bool,
}

impl Completion {
    /// What the choices of an answered request say.
    pub fn of(request: &Request, choices: &[Choice]) -> Completion {
        let is_cut = |choice: &Choice| {
            choice.finish_reason() == FinishReason::Length
                && request.prompt_of(choice.index()).max_new > 0
        };
        Completion {
            cut: !request.ignore_eos && choices.iter().any(is_cut),
            failed: choices.iter().any(|choice| choice.finish_reason() == FinishReason::Error),
        }
    }
}

/// One of a request's answers; what is said of its prompt is not in it.
pub fn done(request: &Request, index: usize, answer: Answer) -> Done {
    let completion_tokens = u64::from(answer.generated);
    let choice = choice(request, index, answer);
    Done { choice, completion_tokens, prompt_logprobs: None }
}

/// The line of a request with its answers, those to the first prompt first, newline included; and
/// what is to be told of them.
pub fn answer_line(
    request: &Request,
    answers: Vec<Done>,
    provenance: &Provenance,
) -> (Vec<u8>, Completion) {
    let suffix = id_suffix(&request.custom_id);
    let body = response_body(request, answers, provenance);
    let ended = Completion::of(request, &body.choices);
    let line = to_bytes(&OutputLine {
        id: format!("batch_req_{suffix}"),
        custom_id: request.custom_id.clone(),
        columns: request.columns.clone(),
        response: Some(Response { status_code: 200, request_id: request_id(request), body }),
        error: None,
    });
    (line, ended)
}

/// The answers to a request, those to the first prompt first.
pub fn response_body(
    request: &Request,
    mut answers: Vec<Done>,
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

/// What of a request is not done as it says, a sentence each.
pub fn warnings(request: &Request) -> Vec<String> {
    let unheld = request.grammar.as_deref().map(Grammar::unheld).unwrap_or_default();
    request.warnings.iter().cloned().chain(unheld).collect()
}

/// Token ids of the prompt of an answer, if they are requested.
pub fn prompt_token_ids(request: &Request, choice: usize) -> Option<Vec<u32>> {
    request.returns_token_ids.then(|| request.prompt_of(choice).tokens.clone())
}

/// `id` of the answers to a request.
pub fn body_id(request: &Request) -> String {
    let chat = request.endpoint == Endpoint::ChatCompletions;
    format!("{}-{}", if chat { "chatcmpl" } else { "cmpl" }, id_suffix(&request.custom_id))
}

/// Tokens of all prompts of a request.
pub fn prompt_tokens(request: &Request) -> u64 {
    request.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum()
}

/// The line of a request of which so far only some answers are there, newline included.
pub fn unfinished_line(request: &Request, choices: Vec<Done>, provenance: &Provenance) -> Vec<u8> {
    let made = PartialAnswer {
        request_id: request_id(request),
        created: provenance.created,
        model: provenance.model.clone(),
        system_fingerprint: provenance.system_fingerprint.clone(),
        choices,
    };
    let (there, all) = (made.choices.len(), request.choices());
    to_bytes(&OutputLine {
        id: format!("batch_req_{}", id_suffix(&request.custom_id)),
        custom_id: request.custom_id.clone(),
        columns: Map::new(),
        response: None,
        error: Some(ErrorBody {
            code: UNFINISHED.to_owned(),
            message: format!(
                "Line {}: the run ended with {there} of {all} answers to this request. Run the \
                 same command with --resume to get the others.",
                request.line
            ),
            line: request.line,
            made: Some(Box::new(made)),
        }),
    })
}

/// `code` of the line of a request of which only some answers are there.
pub const UNFINISHED: &str = "unfinished";

fn choice(request: &Request, index: usize, answer: Answer) -> Choice {
    let finish_reason = FinishReason::of(&answer);
    let Answer { text, reasoning, calls, token_ids, logprobs, error, .. } = answer;
    let reasoning_content = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
    if request.endpoint == Endpoint::ChatCompletions {
        let tool_calls = tool_calls(&request.custom_id, index, calls);
        let role = "assistant".to_owned();
        let content = text;
        let message = Message { role, reasoning_content, content, refusal: None, tool_calls };
        let logprobs = logprobs.map(Logprobs::of_chat);
        Choice::Chat { index, message, token_ids, finish_reason, logprobs, error }
    } else {
        let logprobs = logprobs.map(Logprobs::of_text);
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

/// The line of a request that cannot be answered, newline included.
pub fn error_line(error: &LineError) -> Vec<u8> {
    to_bytes(&OutputLine {
        id: format!("batch_req_{}", id_suffix(&format!("{}\n{}", error.custom_id, error.line))),
        custom_id: error.custom_id.clone(),
        columns: Map::new(),
        response: None,
        error: Some(ErrorBody::of(error)),
    })
}

impl ErrorBody {
    /// Of a line that has no answer.
    pub fn of(error: &LineError) -> ErrorBody {
        ErrorBody {
            code: error.rejection.code.name().to_owned(),
            message: format!("Line {}: {}", error.line, error.rejection.message),
            line: error.line,
            made: None,
        }
    }
}

fn to_bytes(line: &OutputLine) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).expect("numbers, texts and lists always serialise");
    bytes.push(b'\n');
    bytes
}
