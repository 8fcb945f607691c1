//! The two endpoints that continue texts.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};

use super::admission::Ticket;
use super::blocking;
use super::error::ApiError;
use super::order::{self, Order};
use super::running::Running;
use super::shared::Shared;
use super::stream;
use super::whole;
use crate::openai::item::Endpoint;
use crate::openai::output::Provenance;

/// `/v1/chat/completions`.
pub async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(&shared, Endpoint::ChatCompletions, request).await
}

/// `/v1/completions`.
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
    let (order, ticket) = read(shared, endpoint, request).await.inspect_err(|error| {
        shared.metrics.count_refused(error.code());
    })?;
    let running = Running::start(order, shared, ticket, arrived)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let provenance = Provenance {
        created: now.map_or(0, |since| since.as_secs()),
        model: shared.model.name().to_owned(),
        system_fingerprint: shared.model.system_fingerprint.clone(),
    };
    if running.order.stream.is_some() {
        Ok(stream::answer(running, &provenance, shared))
    } else {
        whole::answer(running, &provenance, &shared.model).await
    }
}

/// Reads a request, within bounds on what is asked at a time.
async fn read(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    request: Request,
) -> Result<(Order, Ticket), ApiError> {
    shared.check_open()?;
    let mut ticket = shared.admission.enter().map_err(|full| shared.full(full))?;
    let (parts, body) = request.into_parts();
    let body = shared.inbound.read(&parts.headers, body).await?;
    let reader = Arc::clone(shared);
    blocking::run(move || {
        let order = order::read(&body.bytes, endpoint, &reader, &mut ticket)?;
        Ok((order, ticket))
    })
    .await
}
