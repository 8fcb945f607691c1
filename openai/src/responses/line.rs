//! Output lines of requests to the Responses API, in OpenAI's batch format. The body is what the
//! endpoint answers.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::response::{ResponseError, ResponseHead, ResponseStatus, ResponseUsage};
use super::settings::ResponseSettings;
use crate::answer_parts::{AnswerParts, Call};
use crate::fingerprint::request_id;
use crate::input_line::CompletionRequest;
use crate::output::{
    Choice, Completion, FinishedChoice, OutputLine, Provenance, Response, Usage,
    line_with_response, prompt_tokens,
};
use crate::tool_calls::render::ToolCall;

/// Returns the line of a request with its answer, newline included, and the facts about it. The
/// time at which the response was complete is that of its creation, so that a line does not depend
/// on the time.
pub fn response_line(
    request: &CompletionRequest,
    settings: &Arc<ResponseSettings>,
    answer: FinishedChoice,
    provenance: &Provenance,
) -> (Vec<u8>, Completion) {
    let completion = Completion::from_choices(request, std::slice::from_ref(&answer.choice));
    let head = ResponseHead {
        request: Arc::new(request.clone()),
        settings: Arc::clone(settings),
        provenance: provenance.clone(),
    };
    let response = Response {
        status_code: 200,
        request_id: request_id(request),
        system_fingerprint: Some(provenance.system_fingerprint.clone()),
        body: response_body(&head, answer),
    };
    (line_with_response(request, response), completion)
}

fn response_body(head: &ResponseHead, answer: FinishedChoice) -> Value {
    let FinishedChoice { choice, completion_tokens, reasoning_tokens, .. } = answer;
    let status = ResponseStatus::from_finish_reason(choice.finish_reason());
    let usage = Usage::new(prompt_tokens(&head.request), completion_tokens);
    let (parts, logprobs, error) = match choice {
        Choice::Chat { message, logprobs, error, .. } => {
            let call = |ToolCall { function, .. }: ToolCall| Call {
                name: function.name,
                arguments: function.arguments,
            };
            let parts = AnswerParts {
                reasoning: message.reasoning_content.unwrap_or_default(),
                content: message.content.unwrap_or_default(),
                calls: message.tool_calls.into_iter().map(call).collect(),
            };
            (parts, logprobs.map_or_else(Vec::new, |logprobs| logprobs.content), error)
        }
        Choice::Text { text, error, .. } => {
            (AnswerParts { content: text, ..AnswerParts::default() }, Vec::new(), error)
        }
    };
    let items = head.items_of_parts(parts, logprobs, status.of_last_item());
    let is_completed = status == ResponseStatus::Completed;
    let mut response = head.response(status, &items);
    response.usage = Some(ResponseUsage::new(&usage.with_reasoning(reasoning_tokens)));
    response.completed_at = is_completed.then_some(head.provenance.created);
    response.error = error.as_deref().map(ResponseError::new);
    serde_json::to_value(&response).expect("numbers, texts and lists always serialise")
}

/// A response of an output that was written earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedResponse {
    pub custom_id: String,
    pub request_id: String,
    pub system_fingerprint: String,
    pub created: u64,
    pub model: String,
    pub status: ResponseStatus,
}

/// Parts of a response object that are read from an output.
#[derive(Deserialize)]
struct RecordedBody {
    #[serde(rename = "object")]
    _object: ObjectKind,
    created_at: u64,
    model: String,
    status: ResponseStatus,
}

#[derive(Deserialize)]
enum ObjectKind {
    #[serde(rename = "response")]
    Response,
}

impl RecordedResponse {
    /// Parses a line; returns `None` if it is not one of [`response_line`].
    pub fn parse(line: &[u8]) -> Option<RecordedResponse> {
        let line: OutputLine<RecordedBody> = serde_json::from_slice(line).ok()?;
        let Response { request_id, system_fingerprint, body, .. } = line.response?;
        Some(RecordedResponse {
            custom_id: line.custom_id,
            request_id,
            system_fingerprint: system_fingerprint?,
            created: body.created_at,
            model: body.model,
            status: body.status,
        })
    }

    /// Returns the facts about the answer to `request`.
    pub fn completion(status: ResponseStatus, request: &CompletionRequest) -> Completion {
        let has_tokens = request.prompts.iter().any(|prompt| prompt.max_new > 0);
        Completion {
            is_truncated: status == ResponseStatus::Incomplete && !request.ignore_eos && has_tokens,
            has_failed: status == ResponseStatus::Failed,
        }
    }
}
