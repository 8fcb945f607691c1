//! Routes of the server, and the checks that precede them.

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
use super::request_id;
use super::state::ServerState;
use super::tokens;

/// The only path that requires no key.
const HEALTH: &str = "/health";

/// Endpoints listed in the response for an unknown path.
const ENDPOINTS: [&str; 7] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "POST /tokenize",
    "POST /detokenize",
    "GET /health",
    "GET /metrics",
];

/// Returns the router of all endpoints. Those of OpenAI also exist without `/v1`, for clients whose
/// base URL does not include it.
pub fn router(shared: Arc<ServerState>) -> Router {
    let mut router = Router::new();
    for prefix in ["/v1", ""] {
        router = router
            .route(&format!("{prefix}/chat/completions"), post(completions::chat_completions))
            .route(&format!("{prefix}/completions"), post(completions::text_completions))
            .route(&format!("{prefix}/models"), get(models::list))
            .route(&format!("{prefix}/models/{{*name}}"), get(models::retrieve));
    }
    let router = router
        .route(HEALTH, get(models::health))
        .route("/metrics", get(models::metrics))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(unknown_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&shared), check_api_key))
        .layer(from_fn_with_state(Arc::clone(&shared), check_origin));
    let router = match shared.options.cross_site.cors() {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(from_fn_with_state(Arc::clone(&shared), request_id::assign_request_id))
        .with_state(shared)
}

async fn unknown_path(uri: Uri) -> Response {
    ApiError::no_such_path(uri.path(), &ENDPOINTS).into_response()
}

async fn method_not_allowed() -> Response {
    let message = "Method not allowed. The Allow header lists the methods of this endpoint.";
    let status = StatusCode::METHOD_NOT_ALLOWED;
    ApiError::new(status, INVALID_REQUEST, "method_not_allowed", message).into_response()
}

/// Refuses requests from a page of another site, unless its origin is allowed.
async fn check_origin(
    State(shared): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    match shared.options.cross_site.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            shared.metrics.count_refused(error.code());
            error.into_response()
        }
    }
}

/// Refuses requests without the key, except for the health check.
async fn check_api_key(
    State(shared): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let authorization =
        request.headers().get(header::AUTHORIZATION).map_or(&[][..], |key| key.as_bytes());
    let is_public = request.uri().path() == HEALTH;
    let key = shared.options.api_key.as_ref();
    if is_public || key.is_none_or(|key| key.matches_header(authorization)) {
        next.run(request).await
    } else {
        let error = ApiError::unauthorized();
        shared.metrics.count_refused(error.code());
        error.into_response()
    }
}
