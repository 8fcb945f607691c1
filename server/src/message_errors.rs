//! Headers and error responses of Anthropic's endpoints.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use openai::messages::error::MessagesError;

use super::error::ApiError;
use super::reply::json_bytes;
use super::request_id::RequestId;

/// Paths of Anthropic's endpoints, with and without `/v1`.
const PATHS: [&str; 2] = ["/messages", "/messages/count_tokens"];

/// Header in which Anthropic's clients look for the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Gives responses of Anthropic's endpoints the request's id, and errors the format of its API.
pub async fn convert_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_converted = PATHS.contains(&path.strip_prefix("/v1").unwrap_or(path));
    let id = request.extensions().get::<RequestId>().map(|id| id.as_str().to_owned());
    let mut response = next.run(request).await;
    if let Some(id) = id.as_deref().and_then(|id| HeaderValue::from_str(id).ok())
        && is_converted
    {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if let Some(error) = response.extensions().get::<ApiError>().filter(|_| is_converted) {
        let body = MessagesError::new(error.status().as_u16(), error.message(), error.param(), id);
        *response.body_mut() = json_bytes(&body).into();
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response
}
