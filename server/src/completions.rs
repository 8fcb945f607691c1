//! The endpoints that answer prompts and conversations.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use openai::output::Provenance;

use super::activity::{Activity, ConnectionPhase};
use super::background_responses;
use super::error::ApiError;
use super::in_flight::{InFlightRequest, RequestMetadata, RequestPermits};
use super::json_response;
use super::parsed_request::{self, ParsedRequest};
use super::request_api::RequestApi;
use super::request_id::RequestId;
use super::state::ServerState;
use super::stream;

/// Maximum number of prompt tokens, over all answers, that are submitted to the engine on a socket
/// thread; copying more takes too long and is done on a writing thread.
const INLINE_SUBMIT_TOKENS_MAX: usize = 64 << 10;

/// Handles `/v1/chat/completions`.
pub async fn chat_completions(
    State(shared): State<Arc<ServerState>>,
    request: Request,
) -> Response {
    respond(&shared, RequestApi::ChatCompletions, request).await
}

/// Handles `/v1/completions`.
pub async fn text_completions(
    State(shared): State<Arc<ServerState>>,
    request: Request,
) -> Response {
    respond(&shared, RequestApi::Completions, request).await
}

/// Handles `/v1/messages`.
pub async fn messages(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    respond(&shared, RequestApi::Messages, request).await
}

/// Handles `POST /v1/responses`.
pub async fn responses(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    respond(&shared, RequestApi::Responses, request).await
}

async fn respond(shared: &Arc<ServerState>, api: RequestApi, request: Request) -> Response {
    match answer(shared, api, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(
    shared: &Arc<ServerState>,
    api: RequestApi,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived_at = Instant::now();
    let extensions = request.extensions();
    let request_id = extensions.get::<RequestId>().map_or("", RequestId::as_str).to_owned();
    let activity = extensions.get::<Arc<Activity>>().cloned();
    let parsed = parse(shared, api, request, activity.as_deref()).await;
    let (parsed, permits) = parsed.inspect_err(|error| {
        shared.metrics.count_refused(error.code());
    })?;
    let metadata = RequestMetadata { arrived_at, request_id };
    let in_flight = start(parsed, shared, permits, metadata).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let provenance = Provenance {
        created: now.map_or(0, |since| since.as_secs()),
        model: shared.model.name().to_owned(),
        system_fingerprint: shared.model.system_fingerprint.clone(),
    };
    let response = in_flight.parsed.request.response.as_ref();
    if response.is_some_and(|settings| settings.is_background) {
        return background_responses::start(in_flight, provenance, shared).await;
    }
    if in_flight.parsed.stream.is_some() {
        Ok(stream::answer(in_flight, &provenance, shared, activity))
    } else {
        json_response::answer(in_flight, provenance, shared).await
    }
}

/// Reads a request, subject to the admission limits.
async fn parse(
    shared: &Arc<ServerState>,
    api: RequestApi,
    request: Request,
    activity: Option<&Activity>,
) -> Result<(ParsedRequest, RequestPermits), ApiError> {
    shared.check_open()?;
    // A body is not read if its request cannot be admitted; the request is admitted once the body
    // is complete.
    shared.admission.check_capacity().map_err(|full| shared.admission_error(full))?;
    let (parts, body) = request.into_parts();
    let mut body = shared.body_reader.read(&parts.headers, body).await?;
    if let Some(activity) = activity {
        activity.set_phase(ConnectionPhase::Answering);
    }
    shared.check_open()?;
    let mut permit = shared.admission.admit().map_err(|full| shared.admission_error(full))?;
    let reader = Arc::clone(shared);
    let size_bytes = body.size_bytes();
    let parse = move || {
        let parsed = parsed_request::parse(body.bytes(), api, &reader, &mut permit)?;
        let memory = parsed.acquire_memory(&reader)?;
        Ok((parsed, RequestPermits { admission: permit, memory }))
    };
    let (parsed, permits) = shared.blocking_pools.parse_body(size_bytes, parse).await?;
    if parsed.request.grammar.is_none() {
        return Ok((parsed, permits));
    }
    let checker = Arc::clone(shared);
    let parsed = shared.blocking_pools.grammars.run(move || parsed.with_grammar(&checker)).await?;
    Ok((parsed, permits))
}

/// Submits the request to the engine.
async fn start(
    parsed: ParsedRequest,
    shared: &Arc<ServerState>,
    permits: RequestPermits,
    metadata: RequestMetadata,
) -> Result<InFlightRequest, ApiError> {
    let prompts = &parsed.request.prompts;
    let tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    if tokens * parsed.request.n <= INLINE_SUBMIT_TOKENS_MAX {
        return InFlightRequest::start(parsed, shared, permits, metadata);
    }
    let state = Arc::clone(shared);
    let start = move || InFlightRequest::start(parsed, &state, permits, metadata);
    shared.blocking_pools.writing.run(start).await
}
