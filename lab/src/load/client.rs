//! Sends one request and receives its answer, over a separate connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::api::{Api, response_error};
use super::server_url::ServerUrl;
use super::sse_parser::SseParser;

/// Maximum number of bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Returns the authorization header for an API key, marked as sensitive so that it is never
/// printed.
///
/// # Errors
/// The key is empty or contains characters that a header cannot have.
pub fn parse_key(key: &str) -> Result<HeaderValue, String> {
    let value = (!key.is_empty()).then(|| HeaderValue::try_from(format!("Bearer {key}")));
    let mut value = value
        .and_then(Result::ok)
        .ok_or_else(|| "expected a non-empty key of visible characters".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reason for which there is no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {authority}: {source}")]
    Connect { authority: String, source: io::Error },
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("status {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("{0}")]
    Stream(String),
    #[error("the stream ended without a token")]
    NoTokens,
    #[error("the stream ended before its end marker")]
    Truncated,
    #[error("no complete answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// A complete answer, with the times at which its parts arrived.
#[derive(Debug)]
pub struct StreamedAnswer {
    pub sent: Instant,
    /// Arrival time of each event with tokens, at least one.
    pub events: Vec<Instant>,
    pub ended: Instant,
    /// Number of tokens as reported by the server, or else the number of events.
    pub answer_tokens: u32,
}

/// HTTP client for the measured server.
#[derive(Debug)]
pub struct Client {
    pub addresses: Vec<SocketAddr>,
    pub target: ServerUrl,
    pub api: Api,
    /// Value of the authorization header: `Bearer` and the key.
    pub authorization: Option<HeaderValue>,
    /// Maximum duration of each request, from its start.
    pub timeout: Duration,
}

impl Client {
    /// Sends `body` and reads the answer to its end.
    ///
    /// # Errors
    /// The connection fails, the server refuses the request or reports an error in the stream, or
    /// the stream ends early or not in time.
    pub async fn send(&self, body: Bytes) -> Result<StreamedAnswer, ClientError> {
        let answer = tokio::time::timeout(self.timeout, self.send_without_timeout(body));
        answer.await.unwrap_or(Err(ClientError::Timeout(self.timeout)))
    }

    async fn send_without_timeout(&self, body: Bytes) -> Result<StreamedAnswer, ClientError> {
        let authority = self.target.authority();
        let sent = Instant::now();
        let connected = async {
            let stream = TcpStream::connect(&self.addresses[..]).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let stream = connected
            .await
            .map_err(|source| ClientError::Connect { authority: authority.clone(), source })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The connection task ends with the answer, or when the answer is dropped.
        let connection = tokio::spawn(connection);
        let response = sender.send_request(self.request(&authority, body)).await?;
        let streamed = self.read_answer(response, sent).await;
        connection.abort();
        streamed
    }

    fn request(&self, authority: &str, body: Bytes) -> Request<Full<Bytes>> {
        let path = format!("{}{}", self.target.base, self.api.path());
        let mut request = Request::post(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/json")
            // Lets servers that use one thread per connection free it at once.
            .header(CONNECTION, "close");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(body)).expect("a URL's path and host, as they were parsed")
    }

    async fn read_answer(
        &self,
        response: Response<Incoming>,
        sent: Instant,
    ) -> Result<StreamedAnswer, ClientError> {
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let message = response_error(&read_prefix(&mut body).await?);
            return Err(ClientError::Refused { status, message });
        }
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        let (mut reported_tokens, mut is_complete) = (None, false);
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let now = Instant::now();
            let Some(data) = frame.data_ref() else { continue };
            parser
                .push(data, |data| {
                    if data == b"[DONE]" {
                        is_complete = true;
                        return Ok(());
                    }
                    let event = self.api.parse_event(data)?;
                    if event.has_tokens {
                        events.push(now);
                    }
                    reported_tokens = event.answer_tokens.or(reported_tokens);
                    is_complete |= event.is_last;
                    Ok(())
                })
                .map_err(ClientError::Stream)?;
        }
        match (events.is_empty(), is_complete) {
            (_, false) => Err(ClientError::Truncated),
            (true, true) => Err(ClientError::NoTokens),
            (false, true) => Ok(StreamedAnswer {
                sent,
                answer_tokens: reported_tokens.unwrap_or(events.len() as u32),
                events,
                ended: Instant::now(),
            }),
        }
    }
}

async fn read_prefix(body: &mut Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_ERROR_BYTES
        && let Some(frame) = body.frame().await
    {
        bytes.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
    }
    Ok(bytes)
}
