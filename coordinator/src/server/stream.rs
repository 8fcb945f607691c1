//! Answers that are told while they grow, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::time::sleep;

use super::activity::Activity;
use super::error::ApiError;
use super::facts::ModelCard;
use super::running::Running;
use super::sequence::{News, What};
use super::shared::Shared;
use crate::openai::chunk::{Chunk, ChunkChoice, ChunkHead, Ending};
use crate::openai::growing::Delta;
use crate::openai::output::{FinishReason, Provenance, Usage};

/// Between two signs of life where there is nothing to tell.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Bytes of events that are sent together, about.
const TOGETHER_BYTES: usize = 16 << 10;

/// Tokens and log-probabilities of events that are written on a thread that others wait for.
const WRITTEN_AT_ONCE: usize = 1024;
/// Log-probabilities of a token, about.
const SPELLED_AT_ONCE: usize = 8;

/// The last event.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The answer to a request as a stream.
pub fn answer(
    running: Running,
    provenance: &Provenance,
    shared: &Arc<Shared>,
    activity: Option<Arc<Activity>>,
) -> Response {
    let head = ChunkHead::new(&running.order.request, provenance);
    let is_first = vec![true; running.order.request.choices()];
    let shared = Arc::clone(shared);
    let events = Events { shared, running, head, is_first, activity, is_over: false };
    let body = Body::from_stream(unfold(events, Events::next));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let of = HeaderValue::from_static;
    headers.insert(header::CONTENT_TYPE, of("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, of("no-cache"));
    // Proxies would collect events.
    headers.insert("x-accel-buffering", of("no"));
    response
}

/// The events of an answer.
struct Events {
    shared: Arc<Shared>,
    running: Running,
    head: ChunkHead,
    /// Of each answer, whether nothing was told of it yet.
    is_first: Vec<bool>,
    activity: Option<Arc<Activity>>,
    is_over: bool,
}

impl Events {
    /// The next bytes; `None` behind the last.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Events)> {
        if self.is_over {
            return None;
        }
        let mut bytes = Vec::new();
        let mut told = self.wait().await;
        if told.is_none() {
            bytes.extend_from_slice(b": still here\n\n");
        }
        while let Some(news) = told.take() {
            if news.as_ref().is_ok_and(is_long) {
                (self, bytes) = self.write_long(news, bytes).await?;
            } else {
                self.write(news, &mut bytes);
            }
            if !self.is_over && bytes.len() < TOGETHER_BYTES {
                told = self.running.try_next();
            }
        }
        Some((Ok(bytes.into()), self))
    }

    /// Waits for news; `None` where it is time for a sign of life.
    async fn wait(&mut self) -> Option<Result<News, ApiError>> {
        let activity = self.activity.clone();
        let doubted = async {
            match &activity {
                Some(activity) => activity.doubted().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            news = self.running.next() => Some(news),
            () = doubted => None,
            () = sleep(ALIVE_EVERY) => None,
        }
    }

    /// Writes news that take a while on a thread that nobody else waits for. `None` where that
    /// fails, so that the stream ends within.
    async fn write_long(
        mut self,
        news: Result<News, ApiError>,
        mut bytes: Vec<u8>,
    ) -> Option<(Events, Vec<u8>)> {
        let shared = Arc::clone(&self.shared);
        let write = move || {
            self.write(news, &mut bytes);
            Ok((self, bytes))
        };
        shared.blocking.writing.run(write).await.ok()
    }

    fn write(&mut self, news: Result<News, ApiError>, bytes: &mut Vec<u8>) {
        match news {
            Ok(news) => {
                if let Some(choice) = self.choice(news) {
                    self.chunk(vec![choice], bytes);
                }
                if !self.running.is_open() {
                    if self.running.order.stream.is_some_and(|stream| stream.include_usage) {
                        self.chunk(Vec::new(), bytes);
                    }
                    self.is_over = true;
                }
            }
            Err(error) => {
                event(&error.envelope(), bytes);
                self.is_over = true;
            }
        }
        if self.is_over {
            bytes.extend_from_slice(DONE);
        }
    }

    /// What an event says of its answer; `None` where there is nothing to say.
    fn choice(&mut self, news: News) -> Option<ChunkChoice> {
        let News { choice, what } = news;
        let order = &self.running.order;
        let is_alone = order.is_prompt_alone(choice);
        let (delta, ending) = match what {
            What::Prompt { logprobs, .. } => return self.prompt(choice, &logprobs),
            What::Grown(delta, _) => (delta, None),
            What::Ended(mut ended) => {
                if is_alone {
                    ended.answer = ended.answer.emptied();
                }
                let finish_reason = FinishReason::of(&ended.answer);
                (ended.rest, Some(Ending { finish_reason, error: ended.answer.error }))
            }
            What::Failed(_) => return None,
        };
        let characters = order.echo_of(choice).map_or(0, |prompt| prompt.characters());
        let delta = if is_alone { Delta::default() } else { delta };
        let is_first = std::mem::replace(&mut self.is_first[choice], false);
        Some(self.head.choice(choice, is_first, delta, ending).moved(characters))
    }

    /// A prompt that is echoed.
    fn prompt(
        &mut self,
        choice: usize,
        logprobs: &[crate::boundary::engine::Logprob],
    ) -> Option<ChunkChoice> {
        let model: &ModelCard = &self.shared.model;
        let known = self.running.order.of_prompt(choice, logprobs, model).echoed_logprobs();
        let text = self.running.order.echo_of(choice)?.text.clone();
        Some(ChunkChoice::Text {
            index: choice,
            text,
            token_ids: Vec::new(),
            logprobs: known,
            finish_reason: None,
            error: None,
        })
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, bytes: &mut Vec<u8>) {
        let options = self.running.order.stream.unwrap_or_default();
        let is_last = choices.is_empty();
        let usage: Option<Option<Usage>> = if options.continuous_usage || is_last {
            Some(Some(self.running.usage()))
        } else {
            options.include_usage.then_some(None)
        };
        event(&Chunk { head: &self.head, choices, usage }, bytes);
    }
}

/// Returns true for news that take a while to write.
fn is_long(news: &News) -> bool {
    let size = match &news.what {
        What::Prompt { logprobs, .. } => logprobs.len(),
        What::Grown(delta, _) => delta.token_ids.len(),
        What::Ended(ended) => {
            let width = ended.rest.logprobs.as_ref().map_or(1, |_| SPELLED_AT_ONCE);
            ended.rest.token_ids.len() * width
        }
        What::Failed(_) => 0,
    };
    size > WRITTEN_AT_ONCE
}

fn event(body: &impl Serialize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *bytes, body).expect("a list of bytes takes everything");
    bytes.extend_from_slice(b"\n\n");
}
