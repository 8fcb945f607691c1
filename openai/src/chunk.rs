//! Events of a streamed answer.

use serde::Serialize;

use super::answer_accumulator::AnswerDelta;
use super::input_line::{CompletionRequest, Endpoint};
use super::logprobs::{ChatLogprobs, Logprobs, TextLogprobs};
use super::output::{FinishReason, Provenance, Usage, body_id, warnings};
use super::tool_calls::render::{ToolCallDelta, tool_call_deltas};

/// Fields that all events of an answer share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChunkHeader {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
    #[serde(skip)]
    is_chat: bool,
    #[serde(skip)]
    custom_id: String,
    /// Answers may have other parts than text: reasoning or tool calls.
    #[serde(skip)]
    has_multiple_parts: bool,
    #[serde(skip)]
    omits_reasoning: bool,
    #[serde(skip)]
    warnings: Vec<String>,
}

impl ChunkHeader {
    /// Creates the shared fields for the answer to a request.
    pub fn new(request: &CompletionRequest, provenance: &Provenance) -> ChunkHeader {
        let is_chat = request.endpoint == Endpoint::ChatCompletions;
        ChunkHeader {
            id: body_id(request),
            object: if is_chat { "chat.completion.chunk" } else { "text_completion" },
            created: provenance.created,
            model: provenance.model.clone(),
            system_fingerprint: provenance.system_fingerprint.clone(),
            is_chat,
            custom_id: request.custom_id.clone(),
            omits_reasoning: request.output.omits_reasoning,
            warnings: warnings(request),
            has_multiple_parts: request.reasoning.is_some()
                || request.grammar.as_deref().is_some_and(|grammar| grammar.calls().is_some()),
        }
    }
}

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompletionChunk<'a> {
    #[serde(flatten)]
    pub head: &'a ChunkHeader,
    /// Continuations of choices; none in the event that only contains token counts.
    pub choices: Vec<ChunkChoice>,
    /// Token ids of a chat's prompt, in the first event of each choice, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Token counts: omitted if they were not requested, and null if a later event contains them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Deviations from the request, one sentence each, in events that end a choice.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

impl<'a> CompletionChunk<'a> {
    /// Creates an event, which contains the warnings if it ends a choice.
    pub fn new(
        head: &'a ChunkHeader,
        choices: Vec<ChunkChoice>,
        prompt_token_ids: Option<Vec<u32>>,
        usage: Option<Option<Usage>>,
    ) -> CompletionChunk<'a> {
        let ends = choices.iter().any(ChunkChoice::is_last);
        let warnings = if ends { head.warnings.as_slice() } else { &[] };
        CompletionChunk { head, choices, prompt_token_ids, usage, warnings }
    }
}

/// Continuation of a choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ChunkChoice {
    Chat {
        index: usize,
        delta: ChatDelta,
        token_ids: Vec<u32>,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<FinishReason>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Text {
        index: usize,
        text: String,
        token_ids: Vec<u32>,
        logprobs: Option<TextLogprobs>,
        finish_reason: Option<FinishReason>,
        /// Token ids of the prompt, in the first event of the choice, if they were requested.
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_token_ids: Option<Vec<u32>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// Continuation of a chat message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatDelta {
    /// Role of the message, in the first event of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New reasoning; omitted if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// New text; omitted if there is none and the answer may have other parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// End of a choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChoiceEnd {
    pub finish_reason: FinishReason,
    /// Reason if the choice is not what was requested.
    pub error: Option<String>,
}

impl ChunkHeader {
    /// Returns the continuation of a choice; `is_first`: the first one of the choice.
    pub fn choice(
        &self,
        index: usize,
        is_first: bool,
        delta: AnswerDelta,
        end: Option<ChoiceEnd>,
    ) -> ChunkChoice {
        let AnswerDelta { text, reasoning, calls, token_ids, logprobs } = delta;
        let finish_reason = end.as_ref().map(|end| end.finish_reason);
        let error = end.and_then(|end| end.error);
        // OpenAI sends null in events without tokens, such as the last one.
        let logprobs = logprobs.filter(|logprobs| !logprobs.is_empty());
        if self.is_chat {
            let content = (!self.has_multiple_parts || !text.is_empty()).then_some(text);
            let is_shown = !reasoning.is_empty() && !self.omits_reasoning;
            let reasoning_content = is_shown.then_some(reasoning);
            let tool_calls = tool_call_deltas(&self.custom_id, index, calls);
            let role = is_first.then_some("assistant");
            let delta = ChatDelta { role, reasoning_content, content, tool_calls };
            let logprobs = logprobs.map(Logprobs::into_chat);
            ChunkChoice::Chat { index, delta, token_ids, logprobs, finish_reason, error }
        } else {
            let logprobs = logprobs.map(Logprobs::into_text);
            let prompt_token_ids = None;
            ChunkChoice::Text {
                index,
                text,
                token_ids,
                logprobs,
                finish_reason,
                prompt_token_ids,
                error,
            }
        }
    }
}

impl ChunkChoice {
    /// Returns the index of the choice.
    pub fn index(&self) -> usize {
        match self {
            ChunkChoice::Chat { index, .. } | ChunkChoice::Text { index, .. } => *index,
        }
    }

    /// Returns true if no other event of the choice follows.
    fn is_last(&self) -> bool {
        match self {
            ChunkChoice::Chat { finish_reason, .. } | ChunkChoice::Text { finish_reason, .. } => {
                finish_reason.is_some()
            }
        }
    }

    /// Returns the continuation with text offsets that follow a text of `characters` characters.
    #[must_use]
    pub fn with_text_offset(mut self, characters: usize) -> ChunkChoice {
        if let ChunkChoice::Text { logprobs: Some(logprobs), .. } = &mut self {
            logprobs.text_offset.iter_mut().for_each(|offset| *offset += characters);
        }
        self
    }
}
