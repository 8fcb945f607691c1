//! JSON responses.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

/// Header with the id of a request, in requests and responses.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Returns `body` as JSON.
pub fn json_bytes(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("numbers, texts and lists always serialise")
}

/// Returns a response with `body` as JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = Response::new(Body::from(json_bytes(body)));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
