//! Answers that are errors, in OpenAI's form.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::reply::json;
use crate::openai::item::{ErrorCode, Rejection};
use crate::openai::refusal::{ErrorEnvelope, ErrorObject, field_of};

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    object: ErrorObject,
    /// When to ask again.
    retry_after_s: Option<u64>,
}

/// The kinds of errors, as OpenAI's clients know them.
pub const INVALID_REQUEST: &str = "invalid_request_error";
const AUTHENTICATION: &str = "authentication_error";
const RATE_LIMIT: &str = "rate_limit_error";
const SERVER: &str = "server_error";

impl ApiError {
    /// An error with a sentence.
    pub fn new(status: StatusCode, kind: &str, code: &str, message: impl Into<String>) -> ApiError {
        let object = ErrorObject {
            message: message.into(),
            kind: kind.to_owned(),
            param: None,
            code: Some(code.to_owned()),
        };
        ApiError { status, object, retry_after_s: None }
    }

    /// A request that cannot be answered as it is.
    pub fn invalid(code: &str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, code, message)
    }

    /// No key, or another one.
    pub fn unauthorized() -> ApiError {
        let message = "This server asks for a key: send it as \"Authorization: Bearer KEY\".";
        ApiError::new(StatusCode::UNAUTHORIZED, AUTHENTICATION, "invalid_api_key", message)
    }

    /// A path that there is not.
    pub fn no_such_path(path: &str, endpoints: &[&str]) -> ApiError {
        let shown: String = path.chars().take(100).collect();
        let message =
            format!("There is nothing at {shown}; the endpoints are {}.", endpoints.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, "unknown_url", message)
    }

    /// A model that is not the one that is served.
    pub fn no_such_model(name: &str, served: &str) -> ApiError {
        let shown: String = name.chars().take(100).collect();
        let message = format!("The model \"{shown}\" is not served here; \"{served}\" is.");
        let mut error =
            ApiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, "model_not_found", message);
        error.object.param = Some("model".to_owned());
        error
    }

    /// Too much is asked at a time.
    pub fn too_many(code: &str, message: impl Into<String>, retry_after_s: u64) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, RATE_LIMIT, code, message);
        ApiError { retry_after_s: Some(retry_after_s), ..error }
    }

    /// Nothing is answered at the moment, or any more.
    pub fn unavailable(code: &str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message);
        ApiError { retry_after_s: Some(5), ..error }
    }

    /// The server failed.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "engine_error", message)
    }

    /// The server was not done in time.
    pub fn timed_out() -> ApiError {
        let message = "The answer was not complete within the server's time limit (--timeout).";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, SERVER, "timeout", message)
    }

    /// A short name for metrics and logs.
    pub fn code(&self) -> &str {
        self.object.code.as_deref().unwrap_or("")
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body of the answer, also where it is an event of a stream.
    pub fn envelope(&self) -> ErrorEnvelope {
        ErrorEnvelope { error: self.object.clone() }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> ApiError {
        let Rejection { code, message } = rejection;
        let mut error = ApiError::invalid(code.name(), message);
        error.object.param = match code {
            ErrorCode::EmptyPrompt | ErrorCode::PromptTooLong => Some("prompt".to_owned()),
            ErrorCode::ChatTemplate => Some("messages".to_owned()),
            _ => field_of(&error.object.message),
        };
        error
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json(self.status, &self.envelope());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}
