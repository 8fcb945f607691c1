//! The two completion endpoints.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use super::activity::{Activity, Phase};
use super::error::ApiError;
use super::order::{self, Order};
use super::request_id::RequestId;
use super::running::{Admitted, Asked, Running};
use super::shared::Shared;
use super::stream;
use super::whole;
use crate::openai::item::Endpoint;
use crate::openai::output::Provenance;

/// Maximum number of prompt tokens, over all answers, that are submitted to the engine on a socket
/// thread; copying more takes too long and is done on a writing thread.
const HANDED_AT_ONCE: usize = 64 << 10;

/// Handles `/v1/chat/completions`.
pub async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(&shared, Endpoint::ChatCompletions, request).await
}

/// Handles `/v1/completions`.
pub async fn text(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(&shared, Endpoint::Completions, request).await
}

async fn respond(shared: &Arc<Shared>, endpoint: Endpoint, request: Request) -> Response {
    match answer(shared, endpoint, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn answer(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let extensions = request.extensions();
    let request_id = extensions.get::<RequestId>().map_or("", RequestId::as_str).to_owned();
    let activity = extensions.get::<Arc<Activity>>().cloned();
    let read = read(shared, endpoint, request, activity.as_deref()).await;
    let (order, admitted) = read.inspect_err(|error| {
        shared.metrics.count_refused(error.code());
    })?;
    let asked = Asked { arrived, request_id };
    let running = start(order, shared, admitted, asked).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let provenance = Provenance {
        created: now.map_or(0, |since| since.as_secs()),
        model: shared.model.name().to_owned(),
        system_fingerprint: shared.model.system_fingerprint.clone(),
    };
    if running.order.stream.is_some() {
        Ok(stream::answer(running, &provenance, shared, activity))
    } else {
        whole::answer(running, provenance, shared).await
    }
}

/// Reads a request, subject to the admission limits.
async fn read(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    request: Request,
    activity: Option<&Activity>,
) -> Result<(Order, Admitted), ApiError> {
    shared.check_open()?;
    // A body is not read if its request cannot be admitted; the request is admitted once the body
    // is complete.
    shared.admission.check_room().map_err(|full| shared.full(full))?;
    let (parts, body) = request.into_parts();
    let body = shared.inbound.read(&parts.headers, body).await?;
    if let Some(activity) = activity {
        activity.set(Phase::Answering);
    }
    shared.check_open()?;
    let mut ticket = shared.admission.enter().map_err(|full| shared.full(full))?;
    let reader = Arc::clone(shared);
    let (order, admitted) = shared
        .blocking
        .reading
        .run(move || {
            let order = order::read(&body.bytes, endpoint, &reader, &mut ticket)?;
            let memory = order.take_memory(&reader)?;
            Ok((order, Admitted { ticket, memory }))
        })
        .await?;
    if order.request.grammar.is_none() {
        return Ok((order, admitted));
    }
    let checker = Arc::clone(shared);
    let order = shared.blocking.grammars.run(move || order.with_grammar(&checker)).await?;
    Ok((order, admitted))
}

/// Submits the request to the engine.
async fn start(
    order: Order,
    shared: &Arc<Shared>,
    admitted: Admitted,
    asked: Asked,
) -> Result<Running, ApiError> {
    let prompts = &order.request.prompts;
    let tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    if tokens * order.request.n <= HANDED_AT_ONCE {
        return Running::start(order, shared, admitted, asked);
    }
    let own = Arc::clone(shared);
    let start = move || Running::start(order, &own, admitted, asked);
    shared.blocking.writing.run(start).await
}
