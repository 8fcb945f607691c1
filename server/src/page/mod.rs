//! The page of the server at `/`: a chat, and the server's metrics. It loads nothing from elsewhere
//! and sends requests to this server alone, which its content security policy enforces.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Paths of the page, which contain no secret and require no key.
pub const PATHS: [&str; 3] = ["/", "/page.js", "/page.css"];

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Adds the routes of the page.
pub fn add_routes<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    let files = [
        (HTML, include_str!("index.html")),
        (SCRIPT, include_str!("page.js")),
        (STYLE, include_str!("page.css")),
    ];
    PATHS.into_iter().zip(files).fold(router, |router, (path, (kind, content))| {
        router.route(path, get(move || async move { respond(kind, content) }))
    })
}

fn respond(kind: &'static str, content: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, content).into_response()
}
