//! Requests to a hub, which is not trusted. Redirects are followed here, so that the token is sent
//! only to the endpoint for which it was given, and the size of everything read is bounded.

use std::time::Duration;

use ureq::http::header::{AUTHORIZATION, RANGE};
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, Body, BodyReader};

use super::names::{Hash, url_segment};

/// Default hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
const REDIRECTS_MAX: usize = 10;
/// Maximum size of a repository's list of files; 100,000 files take a fifth of it.
const LIST_MAX_BYTES: u64 = 64 << 20;
const CONNECT_LIMIT: Duration = Duration::from_secs(15);
/// Maximum time without a byte from the hub.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time for a list of files.
const LIST_LIMIT: Duration = Duration::from_secs(120);

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HubError {
    #[error("{0}")]
    Http(#[from] ureq::Error),
    #[error("status {0}")]
    Status(u16),
    #[error("the hub redirects to {0:?}, which is not followed")]
    Redirect(String),
    #[error("the hub redirects more than {REDIRECTS_MAX} times")]
    Redirects,
    #[error("the hub's header {name} is {value:?}, which is not a hash of 40 or 64 digits")]
    Header { name: &'static str, value: String },
    #[error("the hub sent a different byte range than requested")]
    Range,
}

impl HubError {
    /// Returns the message for the user.
    pub(super) fn user_message(&self, model: &str, revision: &str) -> anyhow::Error {
        match self {
            HubError::Status(401 | 403) => anyhow::anyhow!(
                "{model} is not public or does not exist on the hub; set HF_TOKEN to the token of \
                 an account that may read it"
            ),
            HubError::Status(404) => {
                anyhow::anyhow!("the hub has no {model} at revision {revision}")
            }
            HubError::Status(status) => {
                anyhow::anyhow!("the hub answered with status {status}; try again later")
            }
            HubError::Http(ureq::Error::BodyExceedsLimit(bytes)) => anyhow::anyhow!(
                "the hub's list of files exceeds {} MiB and is not read",
                bytes >> 20
            ),
            HubError::Http(error) => anyhow::anyhow!(
                "the hub cannot be reached ({error}); without a network, copy the model's folder \
                 here and pass its path as --model, or set HF_ENDPOINT to another hub"
            ),
            error => anyhow::anyhow!("{error}; set HF_ENDPOINT to use another hub"),
        }
    }
}

/// Header fields and body of a response with a file or the rest of it.
pub(super) struct Download {
    /// Name of the content in the hub's own response.
    pub(super) etag: Option<Hash>,
    pub(super) commit: Option<Hash>,
    /// Offset of the first byte in the file.
    pub(super) start: u64,
    /// Size of the whole file, if the response states it.
    pub(super) total_bytes: Option<u64>,
    pub(super) body: BodyReader<'static>,
}

/// A hub, which is not trusted.
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    origin: UrlOrigin,
    token: Option<String>,
}

/// Part of a URL for which a token is valid.
#[derive(Debug, PartialEq, Eq)]
struct UrlOrigin {
    is_https: bool,
    host: String,
    port: u16,
}

impl UrlOrigin {
    /// Returns the origin of a URL; `None` if its scheme is not HTTP or HTTPS.
    fn from_uri(uri: &Uri) -> Option<UrlOrigin> {
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(UrlOrigin { is_https, host: uri.host()?.to_ascii_lowercase(), port })
    }
}

impl Hub {
    /// Returns the hub at `HF_ENDPOINT`. `token` is sent only to it.
    ///
    /// # Errors
    /// An endpoint that is not a URL, or a token with invalid characters.
    pub(super) fn from_environment(token: Option<String>) -> anyhow::Result<Hub> {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let origin = endpoint.parse().ok().as_ref().and_then(UrlOrigin::from_uri);
        let Some(origin) = origin else {
            anyhow::bail!("HF_ENDPOINT is {endpoint:?}, which is not a URL such as {ENDPOINT}");
        };
        anyhow::ensure!(
            token.as_ref().is_none_or(|token| token.bytes().all(|byte| byte.is_ascii_graphic())),
            "HF_TOKEN has characters that are invalid in a token; copy it again"
        );
        let agent = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("tandem/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_recv_response(Some(SILENCE_LIMIT))
            .timeout_per_read(Some(SILENCE_LIMIT))
            .build()
            .into();
        Ok(Hub { agent, endpoint, origin, token })
    }

    /// Fetches the list of a repository's files.
    ///
    /// # Errors
    /// See [`HubError`].
    pub(super) fn list(&self, repository: &str, revision: &str) -> Result<Vec<u8>, HubError> {
        let revision = url_segment(revision);
        let url =
            format!("{}/api/models/{repository}/revision/{revision}?blobs=true", self.endpoint);
        let (mut response, _) = self.get(&url, None, Some(LIST_LIMIT))?;
        Ok(response.body_mut().with_config().limit(LIST_MAX_BYTES).read_to_vec()?)
    }

    /// Starts to fetch a file, from byte `start` if the hub supports it.
    ///
    /// # Errors
    /// See [`HubError`].
    pub(super) fn download(
        &self,
        repository: &str,
        revision: &str,
        path: &str,
        start: u64,
    ) -> Result<Download, HubError> {
        let path: Vec<String> = path.split('/').map(url_segment).collect();
        let (revision, path) = (url_segment(revision), path.join("/"));
        let url = format!("{}/{repository}/resolve/{revision}/{path}", self.endpoint);
        let (response, file_headers) = self.get(&url, Some(start), None)?;
        let length = response.body().content_length();
        let (start, total_bytes) = match response.status().as_u16() {
            206 => {
                let range = header(response.headers(), "content-range");
                let (begin, total) =
                    range.as_deref().and_then(content_range).ok_or(HubError::Range)?;
                if begin != start {
                    return Err(HubError::Range);
                }
                (begin, total.or_else(|| begin.checked_add(length?)))
            }
            _ => (0, length),
        };
        let body = response.into_body().into_reader();
        Ok(Download {
            etag: file_headers.etag,
            commit: file_headers.commit,
            start,
            total_bytes,
            body,
        })
    }

    /// Sends a request and follows redirects. `start` is the offset in a file; for a file, the
    /// hub's own responses also name its hash and commit.
    fn get(
        &self,
        url: &str,
        start: Option<u64>,
        limit: Option<Duration>,
    ) -> Result<(Response<Body>, FileHeaders), HubError> {
        let mut uri: Uri = url.parse().map_err(|_| HubError::Redirect(url.to_owned()))?;
        let mut file_headers = FileHeaders::default();
        for _ in 0..=REDIRECTS_MAX {
            let Some(origin) = UrlOrigin::from_uri(&uri) else {
                return Err(HubError::Redirect(uri.to_string()));
            };
            let is_hub = origin == self.origin;
            let mut request = self.agent.get(&uri);
            if let (Some(token), true) = (&self.token, is_hub) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(start) = start.filter(|start| *start > 0) {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            let response = request.config().timeout_global(limit).build().call()?;
            let is_redirect = match response.status().as_u16() {
                200 | 206 => false,
                301 | 302 | 303 | 307 | 308 => true,
                status => return Err(HubError::Status(status)),
            };
            if is_hub && start.is_some() {
                file_headers.add(response.headers(), is_redirect)?;
            }
            if !is_redirect {
                return Ok((response, file_headers));
            }
            let location = header(response.headers(), "location").unwrap_or_default();
            let next = resolve_redirect(&uri, &location);
            let next = next.filter(|next| {
                // A request over HTTPS is never redirected to HTTP.
                UrlOrigin::from_uri(next).is_some_and(|next| next.is_https || !origin.is_https)
            });
            uri = next.ok_or(HubError::Redirect(location))?;
        }
        Err(HubError::Redirects)
    }
}

/// Hash and commit of a file from the hub's own responses; those of other hosts are ignored.
#[derive(Debug, Default)]
struct FileHeaders {
    etag: Option<Hash>,
    commit: Option<Hash>,
}

impl FileHeaders {
    /// Reads the headers of a response. The ETag of a redirect is not that of the file.
    fn add(&mut self, headers: &HeaderMap, is_redirect: bool) -> Result<(), HubError> {
        let read = |name: &'static str, parse: fn(&str) -> Option<Hash>| {
            let Some(value) = header(headers, name) else { return Ok(None) };
            parse(&value).map(Some).ok_or(HubError::Header { name, value })
        };
        let mut etag = read("x-linked-etag", Hash::parse_etag)?;
        if etag.is_none() && !is_redirect {
            etag = read("etag", Hash::parse_etag)?;
        }
        self.etag = self.etag.take().or(etag);
        self.commit = self.commit.take().or(read("x-repo-commit", Hash::parse)?);
        Ok(())
    }
}

/// Returns a header as text, with invalid UTF-8 replaced.
fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Parses a header like `bytes 5-9/10` into the first byte and the total size, which may be
/// unknown.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (begin, _) = range.split_once('-')?;
    Some((begin.parse().ok()?, total.parse().ok()))
}

/// Returns the URL to which a redirect from `base` leads.
fn resolve_redirect(base: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    if location.starts_with("//") {
        return format!("{scheme}:{location}").parse().ok();
    }
    if location.starts_with('/') {
        return format!("{scheme}://{authority}{location}").parse().ok();
    }
    let uri: Uri = location.parse().ok()?;
    uri.scheme_str().is_some().then_some(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect(text)
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |text: &str| UrlOrigin::from_uri(&uri(text));
        assert_eq!(origin("https://Hub.example/x"), origin("https://hub.example:443/y?z"));
        for other in
            ["http://hub.example/", "https://hub.example:8443/", "https://hub.example.evil/"]
        {
            assert_ne!(origin("https://hub.example/"), origin(other), "{other}");
        }
        assert_ne!(origin("https://hub.example/"), origin("https://hub.example@evil/"));
        assert_eq!(origin("ftp://hub.example/"), None);
        assert_eq!(origin("/only/a/path"), None);
    }

    #[test]
    fn redirects_are_resolved_against_where_they_come_from() {
        let base = uri("https://hub.example:8443/a/b?c");
        let to = |location: &str| resolve_redirect(&base, location).map(|uri| uri.to_string());
        assert_eq!(to("/x?y").as_deref(), Some("https://hub.example:8443/x?y"));
        assert_eq!(to("//other/x").as_deref(), Some("https://other/x"));
        assert_eq!(to("http://other/x").as_deref(), Some("http://other/x"));
        for nowhere in ["", "x", "\u{1b}", "http://", "https://a b/"] {
            assert_eq!(to(nowhere), None, "{nowhere}");
        }
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for wrong in ["", "bytes", "bytes */10", "bytes -1-2/3", "items 1-2/3"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
