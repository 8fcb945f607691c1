//! Error responses in OpenAI's format.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use openai::error_response::{ErrorEnvelope, ErrorObject};
use openai::input_line::{ErrorCode, Rejection, rename_fields};

use super::reply::json;

/// Reason for which a request is not answered, and the response that states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    object: ErrorObject,
    /// Number of seconds after which the client may retry.
    retry_after_s: Option<u64>,
}

/// Type of an error in OpenAI's format, like the constants below.
pub const INVALID_REQUEST: &str = "invalid_request_error";
const AUTHENTICATION: &str = "authentication_error";
const RATE_LIMIT: &str = "rate_limit_error";
const SERVER: &str = "server_error";

impl ApiError {
    /// Creates an error of the given type and code with a message, which is a sentence.
    pub fn new(status: StatusCode, kind: &str, code: &str, message: impl Into<String>) -> ApiError {
        let object = ErrorObject {
            message: message.into(),
            kind: kind.to_owned(),
            param: None,
            code: Some(code.to_owned()),
        };
        ApiError { status, object, retry_after_s: None }
    }

    /// Creates the error for an invalid request.
    pub fn invalid(code: &str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, code, message)
    }

    /// Creates the error for a missing or wrong API key.
    pub fn unauthorized() -> ApiError {
        let message = "Incorrect or missing API key. Provide your API key in an Authorization \
                       header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).";
        ApiError::new(StatusCode::UNAUTHORIZED, AUTHENTICATION, "invalid_api_key", message)
    }

    /// Creates the error for an unknown path.
    pub fn no_such_path(path: &str, endpoints: &[&str]) -> ApiError {
        let shown: String = path.chars().take(100).collect();
        let message = format!("Invalid URL: {shown}. The endpoints are {}.", endpoints.join(", "));
        ApiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, "unknown_url", message)
    }

    /// Creates the error for a model that is not served.
    pub fn no_such_model(name: &str, served: &str) -> ApiError {
        let shown: String = name.chars().take(100).collect();
        let message = format!("The model `{shown}` does not exist. This server serves `{served}`.");
        let mut error =
            ApiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, "model_not_found", message);
        error.object.param = Some("model".to_owned());
        error
    }

    /// Creates the error for a request that exceeds a limit on concurrent work.
    pub fn too_many(code: &str, message: impl Into<String>, retry_after_s: u64) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, RATE_LIMIT, code, message);
        ApiError { retry_after_s: Some(retry_after_s), ..error }
    }

    /// Creates the error for a server that accepts no requests at the moment, or has stopped.
    pub fn unavailable(code: &str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message);
        ApiError { retry_after_s: Some(5), ..error }
    }

    /// Creates the error for a failure of the server.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, "engine_error", message)
    }

    /// Creates the error for tokenizer processes that keep failing, regardless of the input.
    pub fn tokenizer_failed(message: impl Into<String>) -> ApiError {
        let code = ErrorCode::InternalError.name();
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, code, message)
    }

    /// Creates the error for an answer that exceeds the server's time limit.
    pub fn timed_out() -> ApiError {
        let message = "The request exceeded the server's time limit (--timeout).";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, SERVER, "timeout", message)
    }

    /// Sets the name of the invalid field.
    #[must_use]
    pub fn with_param(mut self, param: &str) -> ApiError {
        self.object.param = Some(param.to_owned());
        self
    }

    /// Returns the error's code, a short name that metrics and logs use too.
    pub fn code(&self) -> &str {
        self.object.code.as_deref().unwrap_or("")
    }

    /// Returns the message, a sentence.
    pub fn message(&self) -> &str {
        &self.object.message
    }

    /// Returns the name of the invalid field.
    pub fn param(&self) -> Option<&str> {
        self.object.param.as_deref()
    }

    /// Replaces the names of fields, each given with its replacement.
    #[must_use]
    pub fn with_renamed_fields(mut self, names: &[(&str, &str)]) -> ApiError {
        rename_fields(&mut self.object.message, &mut self.object.param, names);
        self
    }

    /// Returns the HTTP status of the response.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the body of the response, which is also the error event of a stream.
    pub fn envelope(&self) -> ErrorEnvelope {
        ErrorEnvelope { error: self.object.clone() }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> ApiError {
        let Rejection { code, message, param } = rejection;
        if code == ErrorCode::InternalError {
            return ApiError::tokenizer_failed(message);
        }
        let mut error = ApiError::invalid(code.name(), message);
        error.object.param = param.or_else(|| match code {
            ErrorCode::EmptyPrompt => Some("prompt".to_owned()),
            ErrorCode::ChatTemplate => Some("messages".to_owned()),
            _ => None,
        });
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
