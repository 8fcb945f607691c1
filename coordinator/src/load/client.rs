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

use super::api::{Api, refusal};
use super::events::Events;
use super::target::Target;

/// Maximum number of bytes of an error response that are read.
const REFUSAL_MAX: usize = 64 * 1024;

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
    Cut,
    #[error("no complete answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// A complete answer, with the times at which its parts arrived.
#[derive(Debug)]
pub struct Streamed {
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
    pub target: Target,
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
    pub async fn answer(&self, body: Bytes) -> Result<Streamed, ClientError> {
        let whole = tokio::time::timeout(self.timeout, self.answer_untimed(body));
        whole.await.unwrap_or(Err(ClientError::Timeout(self.timeout)))
    }

    async fn answer_untimed(&self, body: Bytes) -> Result<Streamed, ClientError> {
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
        let streamed = self.read(response, sent).await;
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

    async fn read(
        &self,
        response: Response<Incoming>,
        sent: Instant,
    ) -> Result<Streamed, ClientError> {
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let message = refusal(&first_bytes(&mut body).await?);
            return Err(ClientError::Refused { status, message });
        }
        let (mut lines, mut events) = (Events::default(), Vec::new());
        let (mut counted, mut is_whole) = (None, false);
        while let Some(frame) = body.frame().await {
            let frame = frame?;
            let now = Instant::now();
            let Some(data) = frame.data_ref() else { continue };
            lines
                .push(data, |data| {
                    if data == b"[DONE]" {
                        is_whole = true;
                        return Ok(());
                    }
                    let piece = self.api.read(data)?;
                    if piece.has_tokens {
                        events.push(now);
                    }
                    counted = piece.answer_tokens.or(counted);
                    is_whole |= piece.is_last;
                    Ok(())
                })
                .map_err(ClientError::Stream)?;
        }
        match (events.is_empty(), is_whole) {
            (_, false) => Err(ClientError::Cut),
            (true, true) => Err(ClientError::NoTokens),
            (false, true) => Ok(Streamed {
                sent,
                answer_tokens: counted.unwrap_or(events.len() as u32),
                events,
                ended: Instant::now(),
            }),
        }
    }
}

async fn first_bytes(body: &mut Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut bytes = Vec::new();
    while bytes.len() < REFUSAL_MAX
        && let Some(frame) = body.frame().await
    {
        bytes.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
    }
    Ok(bytes)
}
