//! Routes of the server, and the checks that precede them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::api_key::ApiKey;
use super::batches::routes::add_routes;
use super::completions;
use super::embeddings;
use super::error::{ApiError, INVALID_REQUEST};
use super::message_errors::convert_errors;
use super::models;
use super::page;
use super::request_id;
use super::rerank;
use super::responses;
use super::state::ServerState;
use super::tokens;

/// Path that requires no key, like those of the page.
const HEALTH: &str = "/health";

/// Header in which Anthropic's clients send the key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Endpoints listed in the response for an unknown path.
const ENDPOINTS: [&str; 19] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "GET /v1/responses/{id}",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v1/files",
    "GET /v1/files/{id}/content",
    "POST /v1/batches",
    "GET /v1/batches/{id}",
    "GET /v1/models",
    "POST /tokenize",
    "POST /detokenize",
    "GET /health",
    "GET /metrics",
    "GET /version",
    "GET /placement",
];

/// Returns the router of all endpoints. Those of OpenAI and Anthropic also exist without `/v1`, for
/// clients whose base URL does not include it.
pub fn router(shared: Arc<ServerState>) -> Router {
    let mut router = Router::new();
    for prefix in ["/v1", ""] {
        router = add_routes(router, prefix)
            .route(&format!("{prefix}/chat/completions"), post(completions::chat_completions))
            .route(&format!("{prefix}/completions"), post(completions::text_completions))
            .route(&format!("{prefix}/embeddings"), post(embeddings::embeddings))
            .route(&format!("{prefix}/rerank"), post(rerank::rerank))
            .route(&format!("{prefix}/messages"), post(completions::messages))
            .route(&format!("{prefix}/messages/count_tokens"), post(tokens::count_message_tokens))
            .route(&format!("{prefix}/responses"), post(completions::responses))
            .route(&format!("{prefix}/responses/input_tokens"), post(tokens::count_response_tokens))
            .route(
                &format!("{prefix}/responses/{{id}}"),
                get(responses::retrieve).delete(responses::delete),
            )
            .route(&format!("{prefix}/responses/{{id}}/input_items"), get(responses::input_items))
            .route(&format!("{prefix}/responses/{{id}}/cancel"), post(responses::cancel))
            .route(&format!("{prefix}/models"), get(models::list))
            .route(&format!("{prefix}/models/{{*name}}"), get(models::retrieve));
    }
    let router = page::add_routes(router)
        .route(HEALTH, get(models::health))
        .route("/metrics", get(models::metrics))
        .route("/version", get(models::version))
        .route("/placement", get(models::placement))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(unknown_path)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&shared), check_api_key))
        .layer(from_fn_with_state(Arc::clone(&shared), check_origin))
        .layer(from_fn(convert_errors));
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

fn has_key(request: &Request, key: &ApiKey) -> bool {
    let value = |name| request.headers().get(name).map_or(&[][..], HeaderValue::as_bytes);
    key.matches_header(value(header::AUTHORIZATION)) || key.matches_key(value(X_API_KEY))
}

/// Refuses requests without the key, except for the health check and the page.
async fn check_api_key(
    State(shared): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_public = path == HEALTH || page::PATHS.contains(&path);
    if is_public || shared.options.api_key.as_ref().is_none_or(|key| has_key(&request, key)) {
        next.run(request).await
    } else {
        let error = ApiError::unauthorized();
        shared.metrics.count_refused(error.code());
        error.into_response()
    }
}
