//! Protection against requests that a browser sends for a page of another site. Any page can make a
//! browser send requests to a server on the same machine. The server must not answer them, and the
//! page must not be able to read answers through a name that it resolves to this machine (DNS
//! rebinding).

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

use super::error::{ApiError, INVALID_REQUEST};
use super::reply::X_REQUEST_ID;

/// Time for which a browser may cache the result of a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_mins(10);

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Sites whose pages may send requests through a browser.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrossSiteRules {
    /// Names that `Host` may contain in addition to `localhost` and addresses; `None` for any name.
    pub hosts: Option<Vec<String>>,
    /// Origins whose pages may send requests and read the answers.
    pub origins: Vec<AllowedOrigin>,
}

/// An origin whose pages may send requests and read the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedOrigin {
    Any,
    /// An origin as browsers send it.
    Origin(HeaderValue),
}

impl AllowedOrigin {
    /// Parses `https://example.com`, `http://localhost:3000`, `null` or `*`.
    ///
    /// # Errors
    /// Returns a sentence that explains what an origin is.
    pub fn parse(text: &str) -> Result<AllowedOrigin, String> {
        if text == "*" {
            return Ok(AllowedOrigin::Any);
        }
        let is_origin = text == "null"
            || text.split_once("://").is_some_and(|(scheme, authority)| {
                !scheme.is_empty() && !authority.is_empty() && !authority.contains(['/', '@', ' '])
            });
        let value = HeaderValue::from_str(text).ok().filter(|_| is_origin);
        value.map(AllowedOrigin::Origin).ok_or_else(|| {
            "expected a scheme and a host without a path, such as http://localhost:3000".into()
        })
    }
}

impl CrossSiteRules {
    /// Returns the layer that answers preflights and adds CORS headers; `None` if no origin is
    /// allowed.
    pub fn cors(&self) -> Option<CorsLayer> {
        if self.origins.is_empty() {
            return None;
        }
        let layer = CorsLayer::new()
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // `*` would not include `Authorization`.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([X_REQUEST_ID, header::RETRY_AFTER])
            .allow_private_network(true)
            .max_age(PREFLIGHT_AGE);
        let named = self.origins.iter().filter_map(|origin| match origin {
            AllowedOrigin::Any => None,
            AllowedOrigin::Origin(value) => Some(value.clone()),
        });
        let named: Vec<HeaderValue> = named.collect();
        let all_are_named = named.len() == self.origins.len();
        Some(if all_are_named { layer.allow_origin(named) } else { layer.allow_origin(Any) })
    }

    /// Checks the host and the origin of a request.
    ///
    /// # Errors
    /// The request is for a host that is not allowed, or is sent by a page of another site.
    pub fn check(&self, request: &Request) -> Result<(), ApiError> {
        let headers = request.headers();
        let host = self.check_host(request)?;
        let origin = headers.get(header::ORIGIN);
        if let Some(origin) = origin {
            if self.is_allowed(origin) {
                return Ok(());
            }
            if !is_same_origin(origin, host) {
                return Err(origin_not_allowed(origin));
            }
        }
        let sec_fetch_site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
        let is_cross_site = matches!(sec_fetch_site, Some(b"cross-site" | b"same-site"));
        if is_cross_site && request.method() == Method::POST && !is_json(headers) {
            let message = "A cross-site request must be JSON. Set the Content-Type to \
                           application/json.";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let code = "unsupported_media_type";
            return Err(ApiError::new(status, INVALID_REQUEST, code, message));
        }
        Ok(())
    }

    /// Returns the host that a request is for, after checking that it is allowed.
    fn check_host<'r>(&self, request: &'r Request) -> Result<Option<&'r str>, ApiError> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (host, second) = (hosts.next(), hosts.next());
        // The authority of an absolute URI takes precedence over `Host`.
        let named = request.uri().authority().map(|authority| authority.as_str());
        let is_required = request.version() == Version::HTTP_11;
        if (host.is_none() && is_required) || second.is_some() {
            let message = "An HTTP/1.1 request must have exactly one Host header.";
            return Err(ApiError::invalid("invalid_host", message));
        }
        let host = host.map(|host| host.to_str().unwrap_or("\u{fffd}"));
        let Some(allowed) = &self.hosts else { return Ok(named.or(host)) };
        for name in named.iter().chain(&host) {
            if !is_local_name(name) && !allowed.iter().any(|host| matches_host(name, host)) {
                let message = format!(
                    "The host '{}' is not allowed. Start the server with --allowed-host to allow \
                     it.",
                    printable_prefix(name)
                );
                let status = StatusCode::FORBIDDEN;
                return Err(ApiError::new(status, INVALID_REQUEST, "host_not_allowed", message));
            }
        }
        Ok(named.or(host))
    }

    fn is_allowed(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|allowed| match allowed {
            AllowedOrigin::Any => true,
            AllowedOrigin::Origin(allowed) => allowed == origin,
        })
    }
}

fn origin_not_allowed(origin: &HeaderValue) -> ApiError {
    let message = format!(
        "The origin '{}' is not allowed. Start the server with --cors to allow it.",
        printable_prefix(&String::from_utf8_lossy(origin.as_bytes()))
    );
    ApiError::new(StatusCode::FORBIDDEN, INVALID_REQUEST, "origin_not_allowed", message)
}

fn printable_prefix(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(100).collect()
}

/// Returns the host without its port.
fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Returns true for names that no other site can resolve to this machine: addresses and
/// `localhost`.
fn is_local_name(host: &str) -> bool {
    let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

fn matches_host(host: &str, allowed: &str) -> bool {
    let name = without_port(host).trim_end_matches('.');
    name.eq_ignore_ascii_case(allowed) || host.eq_ignore_ascii_case(allowed)
}

/// Returns true if a page has the origin of this server.
fn is_same_origin(origin: &HeaderValue, host: Option<&str>) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let authority = ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme));
    authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_local() {
        for host in ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000"] {
            assert!(is_local_name(host), "{host}");
        }
        for host in ["10.1.2.3:80", "app.localhost", "localhost.", "[::1]"] {
            assert!(is_local_name(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:8000", "127.0.0.1.evil", "x"] {
            assert!(!is_local_name(host), "{host}");
        }
        assert!(
            matches_host("Box.lan:8000", "box.lan") && !matches_host("box.lan.evil", "box.lan")
        );
    }

    #[test]
    fn an_origin_has_no_path() {
        for origin in ["*", "null", "http://localhost:3000", "https://a.example", "app://x"] {
            assert!(AllowedOrigin::parse(origin).is_ok(), "{origin}");
        }
        for wrong in ["", "a.example", "http://", "http://a/", "http://a b", "http://a\n"] {
            assert!(AllowedOrigin::parse(wrong).is_err(), "{wrong}");
        }
    }
}
