//! Stream of the events of a request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;
use tokio::time::sleep;

use super::writer::EventWriter;
use crate::activity::Activity;
use crate::answer_events::{AnswerEvent, AnswerEventKind};
use crate::error::ApiError;
use crate::in_flight::InFlightRequest;
use crate::state::ServerState;

/// Interval between two keep-alive messages while there are no events.
const SSE_KEEPALIVE: Duration = Duration::from_secs(15);

/// Approximate number of bytes of events that are sent together.
const SSE_FLUSH_BYTES: usize = 16 << 10;

/// Maximum number of tokens and log-probabilities of an event that is serialised on a socket
/// thread.
const INLINE_ENTRIES_MAX: usize = 1024;
/// Approximate number of log-probabilities per token.
const ENTRIES_PER_LOGPROB: usize = 8;

/// Returns the streamed response to a request.
pub fn answer(
    in_flight: InFlightRequest,
    writer: Box<dyn EventWriter>,
    shared: &Arc<ServerState>,
    activity: Option<Arc<Activity>>,
) -> Response {
    let shared = Arc::clone(shared);
    let (has_begun, is_finished) = (false, false);
    let events = EventStream { shared, in_flight, writer, activity, has_begun, is_finished };
    let body = Body::from_stream(unfold(events, EventStream::next));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let value = HeaderValue::from_static;
    headers.insert(header::CONTENT_TYPE, value("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, value("no-cache"));
    // Keeps proxies from buffering events.
    headers.insert("x-accel-buffering", value("no"));
    response
}

/// Stream of the events of a request.
struct EventStream {
    shared: Arc<ServerState>,
    in_flight: InFlightRequest,
    writer: Box<dyn EventWriter>,
    activity: Option<Arc<Activity>>,
    has_begun: bool,
    is_finished: bool,
}

impl EventStream {
    /// Returns the next bytes; `None` after the last event.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, EventStream)> {
        if self.is_finished {
            return None;
        }
        let mut bytes = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.writer.begin(&mut bytes);
            if !bytes.is_empty() {
                return Some((Ok(bytes.into()), self));
            }
        }
        let mut received = self.next_event().await;
        if received.is_none() {
            self.writer.write_keep_alive(&mut bytes);
        }
        while let Some(news) = received.take() {
            let is_slow = |event: &AnswerEvent| is_large(event) || self.writer.is_blocking(event);
            if news.as_ref().is_ok_and(is_slow) {
                (self, bytes) = self.write_on_pool(news, bytes).await?;
            } else {
                self.write(news, &mut bytes);
            }
            if !self.is_finished && bytes.len() < SSE_FLUSH_BYTES {
                received = self.in_flight.try_next();
            }
        }
        Some((Ok(bytes.into()), self))
    }

    /// Waits for an event; returns `None` if a keep-alive message is due.
    async fn next_event(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        let activity = self.activity.clone();
        let liveness_check = async {
            match &activity {
                Some(activity) => activity.liveness_check_requested().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            news = self.in_flight.next() => Some(news),
            () = liveness_check => None,
            () = sleep(SSE_KEEPALIVE) => None,
        }
    }

    /// Writes a long event on a writing thread. Returns `None` if that fails, which ends the stream
    /// early.
    async fn write_on_pool(
        mut self,
        event: Result<AnswerEvent, ApiError>,
        mut bytes: Vec<u8>,
    ) -> Option<(EventStream, Vec<u8>)> {
        let shared = Arc::clone(&self.shared);
        let write = move || {
            self.write(event, &mut bytes);
            Ok((self, bytes))
        };
        shared.blocking_pools.writing.run(write).await.ok()
    }

    fn write(&mut self, event: Result<AnswerEvent, ApiError>, bytes: &mut Vec<u8>) {
        match event {
            Ok(event) => {
                self.writer.write(event, &self.in_flight, bytes);
                if !self.in_flight.is_open() {
                    self.writer.end(&self.in_flight, bytes);
                    self.is_finished = true;
                }
            }
            Err(error) => {
                self.writer.fail(&error, bytes);
                self.is_finished = true;
            }
        }
    }
}

/// Returns true if an event takes long to write.
fn is_large(event: &AnswerEvent) -> bool {
    let size = match &event.kind {
        AnswerEventKind::Prompt { logprobs, .. } => logprobs.len(),
        AnswerEventKind::Delta(delta, _) => delta.token_ids.len(),
        AnswerEventKind::Completed(ended) => {
            let width = ended.final_delta.logprobs.as_ref().map_or(1, |_| ENTRIES_PER_LOGPROB);
            ended.final_delta.token_ids.len() * width
        }
        AnswerEventKind::Failed(_) | AnswerEventKind::DetokenizationFailed(_) => 0,
    };
    size > INLINE_ENTRIES_MAX
}
