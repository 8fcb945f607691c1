//! Request ids, by which clients and the log identify a request.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

use super::reply::X_REQUEST_ID;
use super::state::ServerState;

/// Maximum length of an id that a client provides, in bytes.
const MAX_BYTES: usize = 128;

/// Id of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the client's id if it is short and printable.
    fn from_header(value: &HeaderValue) -> Option<RequestId> {
        let bytes = value.as_bytes();
        let is_short = (1..=MAX_BYTES).contains(&bytes.len());
        (is_short && bytes.iter().all(u8::is_ascii_graphic)).then(|| RequestId(value.clone()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Assigns an id to a request and counts its response.
pub async fn assign_request_id(
    State(shared): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let client_id = request.headers().get(X_REQUEST_ID).and_then(RequestId::from_header);
    let id = client_id.unwrap_or_else(|| {
        let name = HeaderValue::from_str(&shared.next_request_id());
        RequestId(name.unwrap_or(HeaderValue::from_static("req")))
    });
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(X_REQUEST_ID, id.0);
    shared.metrics.count_response(response.status().as_u16());
    response
}
