//! Reads request bodies within limits on the size of each, on the size of all of them, and on time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::buffered_body::BufferedBody;
use super::config::SocketLimits;
use super::error::{ApiError, INVALID_REQUEST};

/// Unit in which the memory for bodies is reserved, in bytes.
const UNIT_BYTES: usize = 1024;

/// Maximum number of bytes read and discarded of a body that is too large, so that its sender reads
/// the response.
const DISCARDED_BYTES_MAX: u64 = 64 << 20;
const DISCARDING_TIME: Duration = Duration::from_secs(5);

/// Minimum rate of a sender over the whole body, once the time limit for a part of it has passed.
const MIN_BYTES_PER_SECOND: u64 = 8 << 10;

/// Limits and memory for the bodies of all requests.
#[derive(Debug)]
pub struct BodyReader {
    limits: SocketLimits,
    free_memory: Arc<Semaphore>,
}

/// A body that is read part by part, within the limits on time.
#[derive(Debug)]
pub struct StreamedBody<'r> {
    limits: &'r SocketLimits,
    body: Body,
    began: Instant,
    received_bytes: u64,
}

impl StreamedBody<'_> {
    /// Returns the next part; `None` at the end.
    ///
    /// # Errors
    /// The body is incomplete, or the sender is too slow.
    pub async fn next_data(&mut self) -> Result<Option<Bytes>, ApiError> {
        let time_limit = self.time_left();
        loop {
            let Ok(frame) = timeout(time_limit, self.body.frame()).await else {
                let message = "Timed out while waiting for the rest of the request body.";
                let status = StatusCode::REQUEST_TIMEOUT;
                return Err(ApiError::new(status, INVALID_REQUEST, "body_timeout", message));
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.received_bytes += data.len() as u64;
                        return Ok(Some(data));
                    }
                }
                Some(Err(_)) => return Err(incomplete_body()),
            }
        }
    }

    /// Returns the time limit for the next part: the limit for each part, or less if the sender's
    /// average rate is too low.
    fn time_left(&self) -> Duration {
        let limit = self.limits.body_timeout;
        let by_rate =
            Duration::from_secs_f64(self.received_bytes as f64 / MIN_BYTES_PER_SECOND as f64);
        limit.min((limit + by_rate).saturating_sub(self.began.elapsed()))
    }

    /// Reads and discards the rest, up to a limit on bytes and time.
    pub async fn discard(self) {
        discard(self.body).await;
    }
}

/// Returns the error for a body that ends early.
pub fn incomplete_body() -> ApiError {
    ApiError::invalid("incomplete_body", "The request body is incomplete.")
}

impl BodyReader {
    /// Creates a reader with no bodies in memory.
    pub fn new(limits: SocketLimits) -> BodyReader {
        let free_memory = Arc::new(Semaphore::new(limits.bodies_bytes / UNIT_BYTES));
        BodyReader { limits, free_memory }
    }

    /// Reads a body to its end.
    ///
    /// # Errors
    /// The body is too large or incomplete, the memory for bodies is used up, or the sender is too
    /// slow.
    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<BufferedBody, ApiError> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let length: u64 = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        let bytes_max = self.limits.body_bytes;
        if length > bytes_max as u64 {
            if length <= bytes_max as u64 + DISCARDED_BYTES_MAX {
                discard(body).await;
            }
            return Err(self.too_large());
        }
        let mut buffered = BufferedBody::new(self.reserve(0)?);
        let mut counted = 0;
        let mut body = self.stream(body);
        while let Some(data) = body.next_data().await? {
            let size_bytes = buffered.size_bytes() + data.len();
            if size_bytes > bytes_max {
                body.discard().await;
                return Err(self.too_large());
            }
            let units = size_bytes.div_ceil(UNIT_BYTES);
            let permit = self.reserve(units - counted)?;
            counted = units;
            if buffered.push(&data, permit) {
                // The thread then also looks at its sockets, which it would do once in 61 turns.
                yield_now().await;
            }
        }
        Ok(buffered)
    }

    /// Begins to read a body that is not kept in memory.
    pub fn stream(&self, body: Body) -> StreamedBody<'_> {
        StreamedBody { limits: &self.limits, body, began: Instant::now(), received_bytes: 0 }
    }

    fn reserve(&self, units: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Arc::clone(&self.free_memory).try_acquire_many_owned(units).map_err(|_| {
            let message = "The server is receiving too many request bytes. Please try again later.";
            ApiError::too_many("too_many_bytes", message, 1)
        })
    }

    fn too_large(&self) -> ApiError {
        let message =
            format!("The request body must not exceed {}.", format_bytes(self.limits.body_bytes));
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        ApiError::new(status, INVALID_REQUEST, "body_too_large", message)
    }
}

/// Formats a size in MiB or KiB if it is a multiple of these.
pub fn format_bytes(bytes: usize) -> String {
    match bytes.trailing_zeros() {
        20.. => format!("{} MiB", bytes >> 20),
        10..20 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Reads and discards a body, up to a limit on bytes and time.
async fn discard(mut body: Body) {
    let all = async {
        let mut remaining_bytes = DISCARDED_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(rest) = remaining_bytes.checked_sub(bytes) else { return };
            remaining_bytes = rest;
        }
    };
    let _ = timeout(DISCARDING_TIME, all).await;
}
