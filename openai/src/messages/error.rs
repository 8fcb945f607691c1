//! Bodies of error responses.

use serde::Serialize;

/// Complete body of an error response, which is also the error event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MessagesError {
    #[serde(rename = "type")]
    kind: &'static str,
    error: MessagesErrorObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct MessagesErrorObject {
    #[serde(rename = "type")]
    kind: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<ErrorDetails>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ErrorDetails {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

/// Field by which a client asks the server to keep a conversation.
const THREAD: &str = "thread";

impl MessagesError {
    /// Creates the error of a response with this HTTP status; `param` is the invalid field.
    pub fn new(
        status: u16,
        message: &str,
        param: Option<&str>,
        request_id: Option<String>,
    ) -> MessagesError {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        // With these details, clients send the whole conversation instead.
        let details = (param == Some(THREAD)).then_some(ErrorDetails {
            error_code: "thread_unsupported_request",
            unsupported: [THREAD],
        });
        let error = MessagesErrorObject { kind, message: message.to_owned(), details };
        MessagesError { kind: "error", error, request_id }
    }
}
