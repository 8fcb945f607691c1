//! APIs of requests for answers.

use openai::body::unknown_fields::is_without_effect;
use openai::input_line::{CompletionRequest, Endpoint};
use openai::output::body_id;
use openai::{messages, responses};

/// API of a request, which determines how its body is read and the format of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestApi {
    Completions,
    ChatCompletions,
    /// Anthropic's Messages API.
    Messages,
    /// OpenAI's Responses API.
    Responses,
}

impl RequestApi {
    /// Returns the path of the endpoint.
    pub fn path(self) -> &'static str {
        match self {
            RequestApi::Completions => "/v1/completions",
            RequestApi::ChatCompletions => "/v1/chat/completions",
            RequestApi::Messages => "/v1/messages",
            RequestApi::Responses => "/v1/responses",
        }
    }

    /// Returns the endpoint whose fields the body has after its conversion.
    pub fn endpoint(self) -> Endpoint {
        match self {
            RequestApi::Completions => Endpoint::Completions,
            RequestApi::ChatCompletions | RequestApi::Messages | RequestApi::Responses => {
                Endpoint::ChatCompletions
            }
        }
    }

    /// Returns true if a request may have several answers, which are the choices of its response.
    pub fn has_choices(self) -> bool {
        matches!(self, RequestApi::Completions | RequestApi::ChatCompletions)
    }

    /// Returns the function that returns true for fields that are not parsed.
    pub fn skipped_fields(self) -> fn(&str) -> bool {
        match self {
            // Fields without effect are repeated in the response.
            RequestApi::Responses => |_| false,
            _ => is_without_effect,
        }
    }

    /// Returns the names of fields after the conversion that differ from those of the API, with the
    /// latter.
    pub fn renamed_fields(self) -> &'static [(&'static str, &'static str)] {
        match self {
            RequestApi::Completions | RequestApi::ChatCompletions => &[],
            RequestApi::Messages => &messages::request::RENAMED_FIELDS,
            RequestApi::Responses => &responses::request::RENAMED_FIELDS,
        }
    }

    /// Returns the `id` of the answer to a request.
    pub fn answer_id(self, request: &CompletionRequest) -> String {
        match self {
            RequestApi::Completions | RequestApi::ChatCompletions => body_id(request),
            RequestApi::Messages => messages::message::message_id(request),
            RequestApi::Responses => responses::response::response_id(request),
        }
    }
}
