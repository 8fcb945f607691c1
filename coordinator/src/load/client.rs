//! One request and its answer, over a connection of its own.

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

/// Bytes of a refusal that are read.
const REFUSAL_MAX: usize = 64 * 1024;

/// The header that shows a key, which is printed nowhere.
///
/// # Errors
/// Characters that no header has, or nothing.
pub fn parse_key(key: &str) -> Result<HeaderValue, String> {
    let value = (!key.is_empty()).then(|| HeaderValue::try_from(format!("Bearer {key}")));
    let mut value = value
        .and_then(Result::ok)
        .ok_or_else(|| "a key has visible characters alone, and at least one".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Why there is no whole answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("nobody answers at {authority}: {source}")]
    Connect { authority: String, source: io::Error },
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("status {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("{0}")]
    Stream(String),
    #[error("the stream ended without a token")]
    NoTokens,
    #[error("the stream ended before it said so")]
    Cut,
    #[error("no whole answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// An answer as it came, in moments of the clock.
#[derive(Debug)]
pub struct Streamed {
    pub sent: Instant,
    /// Of each event with tokens, at least one.
    pub events: Vec<Instant>,
    pub ended: Instant,
    /// As the server counts; else as many as events.
    pub answer_tokens: u32,
}

/// How a server is asked.
#[derive(Debug)]
pub struct Client {
    pub addresses: Vec<SocketAddr>,
    pub target: Target,
    pub api: Api,
    /// `Bearer` and the key.
    pub authorization: Option<HeaderValue>,
    /// For each request, from when it is sent.
    pub timeout: Duration,
}

impl Client {
    /// Sends `body` and reads the answer to its end.
    ///
    /// # Errors
    /// No connection, a refusal, an error within the stream, a stream that is cut, or no end of it
    /// in time.
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
        // It ends with the answer, or when that is dropped.
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
            // Servers that give a connection a thread have it back at once.
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
