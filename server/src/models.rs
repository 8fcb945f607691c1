//! Endpoints that describe the served model and the state of the server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::config::PlacementEntry;
use super::error::ApiError;
use super::reply::json;
use super::state::ServerState;

/// A model in OpenAI's format, with vLLM's field for its context and with the tokens that begin and
/// end its texts.
#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: &'a str,
    max_model_len: usize,
    bos_token_id: Option<u32>,
    eos_token_ids: &'a [u32],
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

fn model<'a>(shared: &'a ServerState, id: &'a str) -> Model<'a> {
    Model {
        id,
        object: "model",
        created: shared.model.created,
        owned_by: "tandem",
        root: shared.model.name(),
        max_model_len: shared.context(),
        bos_token_id: shared.model.bos_token_id,
        eos_token_ids: &shared.model.eos_token_ids,
    }
}

/// Handles `/v1/models`.
pub async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    let data = vec![model(&shared, shared.model.name())];
    json(StatusCode::OK, &List { object: "list", data })
}

/// Handles `/v1/models/NAME`, where the name may contain slashes.
pub async fn retrieve(
    State(shared): State<Arc<ServerState>>,
    path: Result<Path<String>, PathRejection>,
) -> Response {
    // No model has a name that is not UTF-8.
    let Ok(Path(name)) = path else {
        return ApiError::no_such_model("\u{fffd}", shared.model.name()).into_response();
    };
    match shared.model.names.iter().find(|known| **known == name) {
        Some(name) => json(StatusCode::OK, &model(&shared, name)),
        None => ApiError::no_such_model(&name, shared.model.name()).into_response(),
    }
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

/// Handles `/version`.
pub async fn version() -> Response {
    json(StatusCode::OK, &Version { version: env!("CARGO_PKG_VERSION") })
}

#[derive(Serialize)]
struct Placement<'a> {
    placement: &'a [PlacementEntry],
}

/// Handles `/placement`.
pub async fn placement(State(shared): State<Arc<ServerState>>) -> Response {
    json(StatusCode::OK, &Placement { placement: &shared.model.placement })
}

/// Handles `/health`, with status 200 while requests are accepted.
pub async fn health(State(shared): State<Arc<ServerState>>) -> Response {
    match shared.check_ready() {
        Ok(()) => json(StatusCode::OK, &Health { status: "ok" }),
        Err(error) => error.into_response(),
    }
}

/// Handles `/metrics`, in OpenMetrics' text format.
pub async fn metrics(State(shared): State<Arc<ServerState>>) -> Response {
    let mut response = Response::new(Body::from(shared.metrics.text()));
    let text = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(text));
    response
}
