//! Responses in the background: their requests are answered at once, and clients poll them.
//!
//! A response is stored when it is queued and again when it has ended. While it is computed, it has
//! a [`BackgroundTask`], so that a stored response that has not ended and has no task was left
//! behind by a server that ended.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use openai::output::Provenance;
use openai::responses::response::{ResponseError, ResponseHead, ResponseStatus, response_id};
use serde_json::Value;

use super::answer_events::{AnswerEventKind, CompletedAnswer};
use super::background_task::{BackgroundTask, TaskPhase, is_queued};
use super::error::ApiError;
use super::in_flight::InFlightRequest;
use super::reply::json;
use super::single_response::SingleResponse;
use super::state::ServerState;
use super::stored_response::put_response;

/// Stores a response that is queued and computes it in the background; returns it as it is.
///
/// # Errors
/// The response cannot be stored.
pub async fn start(
    in_flight: InFlightRequest,
    provenance: Provenance,
    shared: &Arc<ServerState>,
) -> Result<Response, ApiError> {
    let head = in_flight.parsed.response_head(provenance.clone());
    let queued = object(&head, ResponseStatus::Queued, None);
    let (state, value) = (Arc::clone(shared), queued.clone());
    let stored_head = head.clone();
    let put = move || {
        put_response(value, &stored_head, &state).map_err(|error| {
            ApiError::internal(format!("The response could not be stored: {error}."))
        })
    };
    shared.blocking_pools.writing.run(put).await?;
    let task = Arc::new(BackgroundTask::new());
    shared.background_responses.insert(response_id(&head.request), Arc::clone(&task));
    tokio::spawn(run(in_flight, head, Arc::clone(&task), Arc::clone(shared)));
    Ok(json(StatusCode::OK, &queued))
}

/// Computes a response, and stores it when it has ended.
async fn run(
    mut in_flight: InFlightRequest,
    head: ResponseHead,
    task: Arc<BackgroundTask>,
    shared: Arc<ServerState>,
) {
    let outcome = tokio::select! {
        outcome = collect(&mut in_flight, &task) => outcome.map(Some),
        () = task.wait_for(TaskPhase::Cancelled) => Ok(None),
    };
    let id = response_id(&head.request);
    if !task.is_deleted() {
        let (status, error) = match outcome {
            Ok(Some(ended)) => {
                (ResponseStatus::Completed, write(&mut in_flight, ended, &head).await)
            }
            Ok(None) => (ResponseStatus::Cancelled, Ok(())),
            Err(error) => (ResponseStatus::Failed, Err(error)),
        };
        let error = error.err();
        if status != ResponseStatus::Completed || error.is_some() {
            let status = if error.is_some() { ResponseStatus::Failed } else { status };
            let value = object(&head, status, error.as_ref().map(ApiError::message));
            let state = Arc::clone(&shared);
            // A response that cannot be stored is reported as left behind.
            let put = move || Ok(put_response(value, &head, &state).is_ok());
            let _ = shared.blocking_pools.writing.run(put).await;
        }
    }
    // It may have been deleted before it was stored.
    if let Some(store) = shared.responses.as_ref().filter(|_| task.is_deleted()) {
        store.remove(&id);
    }
    shared.background_responses.remove(&id);
    task.advance(TaskPhase::Ended);
}

/// Waits for the answer.
async fn collect(
    in_flight: &mut InFlightRequest,
    task: &BackgroundTask,
) -> Result<Box<CompletedAnswer>, ApiError> {
    let mut answer = None;
    while in_flight.is_open() {
        match in_flight.next().await?.kind {
            AnswerEventKind::Prompt { .. } => task.advance(TaskPhase::Generating),
            AnswerEventKind::Completed(ended) => answer = Some(ended),
            AnswerEventKind::Delta(..)
            | AnswerEventKind::Failed(_)
            | AnswerEventKind::DetokenizationFailed(_) => {}
        }
    }
    answer.ok_or_else(|| ApiError::internal("The request has no answer."))
}

/// Writes and stores the response with an answer.
async fn write(
    in_flight: &mut InFlightRequest,
    ended: Box<CompletedAnswer>,
    head: &ResponseHead,
) -> Result<(), ApiError> {
    let single = SingleResponse {
        shared: Arc::clone(in_flight.shared()),
        parsed: Arc::clone(&in_flight.parsed),
        provenance: head.provenance.clone(),
        usage: in_flight.usage(),
        ended,
    };
    let memory = in_flight.take_memory_permit();
    single.respond(memory).await?;
    let (state, id) = (Arc::clone(in_flight.shared()), response_id(&head.request));
    let check = move || {
        let stored = state.responses.as_ref();
        let stored = stored.and_then(|store| store.get(&id, state.max_json_values()));
        if stored.is_some_and(|stored| is_queued(&stored.response)) {
            return Err(ApiError::internal("The response could not be stored."));
        }
        Ok(())
    };
    in_flight.shared().blocking_pools.reading.run(check).await
}

/// Returns a response object without output.
fn object(head: &ResponseHead, status: ResponseStatus, error: Option<&str>) -> Value {
    let mut response = head.response(status, &[]);
    response.error = error.map(ResponseError::new);
    serde_json::to_value(&response).unwrap_or_default()
}
