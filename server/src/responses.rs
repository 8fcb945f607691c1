//! Endpoints of stored responses.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use openai::responses::stored::{PageRequest, StoredResponse};
use serde::Serialize;

use super::error::{ApiError, INVALID_REQUEST};
use super::query::parameter;
use super::reply::json;
use super::state::ServerState;

/// A response that was deleted.
#[derive(Serialize)]
struct Deleted<'a> {
    id: &'a str,
    object: &'static str,
    deleted: bool,
}

/// Handles `GET /v1/responses/ID`.
pub async fn retrieve(
    State(shared): State<Arc<ServerState>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    if parameter(query.as_deref(), "stream").is_some_and(|stream| stream == "true") {
        let message = "Unsupported parameter: 'stream' is only supported when a response is \
                       created. Remove it.";
        return ApiError::invalid("unsupported_field", message).into_response();
    }
    answer(&shared, id, |stored| Ok(json(StatusCode::OK, &stored.response))).await
}

/// Handles `GET /v1/responses/ID/input_items`.
pub async fn input_items(
    State(shared): State<Arc<ServerState>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let [limit, order, after] =
        ["limit", "order", "after"].map(|name| parameter(query.as_deref(), name));
    let page = PageRequest { limit, order, after };
    answer(&shared, id, move |stored| Ok(json(StatusCode::OK, &stored.input_page(&page)?))).await
}

/// Handles `DELETE /v1/responses/ID`.
pub async fn delete(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    let state = Arc::clone(&shared);
    let remove = move || {
        if !state.responses.as_ref().is_some_and(|store| store.remove(&id)) {
            return Err(state.no_such_response(&id));
        }
        Ok(json(StatusCode::OK, &Deleted { id: &id, object: "response", deleted: true }))
    };
    let removed = shared.blocking_pools.reading.run(remove).await;
    removed.unwrap_or_else(IntoResponse::into_response)
}

/// Handles `POST /v1/responses/ID/cancel`: only responses in the background can be cancelled.
pub async fn cancel(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    answer(&shared, id, |_| {
        let message = "Only responses created with 'background' can be cancelled, which this \
                       server does not support.";
        Err(ApiError::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, "unsupported_field", message))
    })
    .await
}

/// Reads a stored response and answers a request for it.
async fn answer(
    shared: &Arc<ServerState>,
    id: String,
    respond: impl FnOnce(StoredResponse) -> Result<Response, ApiError> + Send + 'static,
) -> Response {
    let state = Arc::clone(shared);
    let read = move || {
        let stored =
            state.responses.as_ref().and_then(|store| store.get(&id, state.max_json_values()));
        respond(stored.ok_or_else(|| state.no_such_response(&id))?)
    };
    let answered = shared.blocking_pools.reading.run(read).await;
    answered.unwrap_or_else(IntoResponse::into_response)
}
