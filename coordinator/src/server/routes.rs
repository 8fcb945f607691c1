//! Which path is what.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::completions;
use super::error::{ApiError, INVALID_REQUEST};
use super::models;
use super::shared::Shared;
use super::tokens;

/// The one path that needs no key.
const HEALTH: &str = "/health";

/// All endpoints.
pub fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(completions::chat))
        .route("/v1/completions", post(completions::text))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route(HEALTH, get(models::health))
        .route("/metrics", get(models::metrics))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

async fn no_such_path(uri: Uri) -> Response {
    ApiError::no_such_path(uri.path()).into_response()
}

async fn no_such_method() -> Response {
    let message = "This endpoint has another method: POST to ask for something, GET to look.";
    let status = StatusCode::METHOD_NOT_ALLOWED;
    ApiError::new(status, INVALID_REQUEST, "method_not_allowed", message).into_response()
}

/// Lets in who shows the key, and counts.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).map_or(&[][..], |key| key.as_bytes());
    let is_free = request.uri().path() == HEALTH;
    let key = shared.options.api_key.as_ref();
    let response = if is_free || key.is_none_or(|key| key.is_shown_by(shown)) {
        next.run(request).await
    } else {
        let error = ApiError::unauthorized();
        shared.metrics.count_refused(error.code());
        error.into_response()
    };
    shared.metrics.count_response(response.status().as_u16());
    response
}
