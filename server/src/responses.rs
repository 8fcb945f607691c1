//! Endpoints of stored responses.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use openai::responses::stored::{PageRequest, StoredResponse};
use serde::Serialize;

use super::background_task::{TaskPhase, update_status};
use super::error::ApiError;
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
    // Before the response is read, which is stored again before its task ends.
    let task = shared.background_responses.find(&id);
    let respond = move |StoredResponse { mut response, .. }| {
        update_status(&mut response, task.as_deref());
        Ok(json(StatusCode::OK, &response))
    };
    answer(&shared, id, respond).await
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
    let task = shared.background_responses.find(&id);
    task.iter().for_each(|task| task.advance(TaskPhase::Deleted));
    let remove = move || {
        // The task may have removed it.
        let is_removed = state.responses.as_ref().is_some_and(|store| store.remove(&id));
        if !is_removed && task.is_none() {
            return Err(state.no_such_response(&id));
        }
        Ok(json(StatusCode::OK, &Deleted { id: &id, object: "response", deleted: true }))
    };
    let removed = shared.blocking_pools.reading.run(remove).await;
    removed.unwrap_or_else(IntoResponse::into_response)
}

/// Handles `POST /v1/responses/ID/cancel`: only responses in the background can be cancelled. One
/// that has ended stays as it is.
pub async fn cancel(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    if let Some(task) = shared.background_responses.find(&id) {
        task.advance(TaskPhase::Cancelled);
        task.wait_for(TaskPhase::Ended).await;
    }
    answer(&shared, id, |StoredResponse { mut response, .. }| {
        if response["background"] != true {
            let message = "Cannot cancel a synchronous response: only responses created with \
                           'background' can be cancelled.";
            return Err(ApiError::invalid("response_not_cancellable", message));
        }
        update_status(&mut response, None);
        Ok(json(StatusCode::OK, &response))
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
