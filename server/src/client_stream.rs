//! A client's socket as the HTTP library sees it. The library's own refusal of a request that it
//! cannot parse has no body; this stream replaces it with a response that has the error object of
//! all other refusals.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::activity::{Activity, ConnectionPhase};
use super::error::{ApiError, INVALID_REQUEST};

/// Socket of a client, which replaces the HTTP library's own refusals.
#[derive(Debug)]
pub struct ClientStream {
    stream: Arc<TcpStream>,
    activity: Arc<Activity>,
    replacement: Option<Replacement>,
}

/// Response that is written instead of another one.
#[derive(Debug)]
struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// Length of the response that is replaced, in bytes.
    replaced_bytes: usize,
}

impl ClientStream {
    /// Wraps the socket of a connection, which is shared with tasks that watch it.
    pub fn new(stream: Arc<TcpStream>, activity: Arc<Activity>) -> ClientStream {
        ClientStream { stream, activity, replacement: None }
    }

    /// Returns the response to write instead of `bytes` if these are a refusal by the HTTP library.
    fn replacement_for(&self, bytes: &[u8]) -> Option<Replacement> {
        // A request that reached an endpoint is answered by the endpoint.
        if self.activity.phase().0 != ConnectionPhase::Idle {
            return None;
        }
        let error = error_for_unparsed(bytes)?;
        let body = serde_json::to_vec(&error.envelope()).ok()?;
        let (status, length) = (error.status(), body.len());
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: \
             {length}\r\nconnection: close\r\n\r\n"
        );
        let bytes_out = [head.as_bytes(), &body].concat();
        Some(Replacement { bytes: bytes_out, written: 0, replaced_bytes: bytes.len() })
    }

    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some(replacing) = &mut self.replacement {
            let rest = &replacing.bytes[replacing.written..];
            if rest.is_empty() {
                let replaced = replacing.replaced_bytes;
                self.replacement = None;
                return Poll::Ready(Ok(replaced));
            }
            match ready!(poll_write(&self.stream, cx, |stream| stream.try_write(rest)))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => replacing.written += written,
            }
        }
        Poll::Ready(Ok(0))
    }
}

/// Returns the error for a response without a body to a request that could not be parsed; `None`
/// for other responses.
fn error_for_unparsed(bytes: &[u8]) -> Option<ApiError> {
    let head = bytes.strip_suffix(b"\r\n\r\n")?;
    let head = std::str::from_utf8(head).ok()?.to_ascii_lowercase();
    if !head.lines().any(|line| line == "content-length: 0") {
        return None;
    }
    let (status, code, message) = match head.strip_prefix("http/1.1 ")?.get(..3)? {
        "400" => (
            StatusCode::BAD_REQUEST,
            "invalid_http",
            "The request is not HTTP/1.1, or its head is malformed.",
        ),
        "414" => (StatusCode::URI_TOO_LONG, "uri_too_long", "The request URL is too long."),
        "431" => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "headers_too_large",
            "The request has more than 100 headers, or a head of more than 64 KiB. Send fewer or \
             shorter headers.",
        ),
        _ => return None,
    };
    Some(ApiError::new(status, INVALID_REQUEST, code, message))
}

/// Calls `write` until the socket accepts bytes or fails.
fn poll_write(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    write: impl Fn(&TcpStream) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match write(stream) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return Poll::Ready(written),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.replacement.is_none() {
            self.replacement = self.replacement_for(bytes);
        }
        if self.replacement.is_some() {
            return self.poll_replacement(cx);
        }
        poll_write(&self.stream, cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let (1, Some(only)) = (slices.len(), slices.first()) {
            return self.poll_write(cx, only);
        }
        poll_write(&self.stream, cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Write)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_refusals_are_replaced() {
        let status =
            |head: &str| error_for_unparsed(head.as_bytes()).map(|error| error.status().as_u16());
        assert_eq!(
            status("HTTP/1.1 431 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
            Some(431)
        );
        assert_eq!(status("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), Some(400));
        assert_eq!(status("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(status("HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"), None);
    }
}
