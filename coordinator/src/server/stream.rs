//! Streamed answers, as server-sent events.

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
use crate::openai::echo::EchoedPrompt;
use crate::openai::growing::Delta;
use crate::openai::output::{FinishReason, Provenance, Usage, prompt_token_ids};

/// Interval between two keep-alive comments while there are no events.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Approximate number of bytes of events that are sent together.
const TOGETHER_BYTES: usize = 16 << 10;

/// Maximum number of tokens and log-probabilities of an event that is serialised on a socket
/// thread.
const WRITTEN_AT_ONCE: usize = 1024;
/// Approximate number of log-probabilities per token.
const SPELLED_AT_ONCE: usize = 8;

/// Last event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Returns the streamed response to a request.
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
    // Keeps proxies from buffering events.
    headers.insert("x-accel-buffering", of("no"));
    response
}

/// Stream of the events of a request.
struct Events {
    shared: Arc<Shared>,
    running: Running,
    head: ChunkHead,
    /// True for each answer of which nothing was sent yet.
    is_first: Vec<bool>,
    activity: Option<Arc<Activity>>,
    is_over: bool,
}

impl Events {
    /// Returns the next bytes; `None` after the last event.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Events)> {
        if self.is_over {
            return None;
        }
        let mut bytes = Vec::new();
        let mut told = self.wait().await;
        if told.is_none() {
            bytes.extend_from_slice(b": keep-alive\n\n");
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

    /// Waits for an event; returns `None` if a keep-alive comment is due.
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

    /// Writes a long event on a writing thread. Returns `None` if that fails, which ends the stream
    /// early.
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

    /// Returns the content of an event for its answer; `None` if there is nothing to send.
    fn choice(&mut self, news: News) -> Option<ChunkChoice> {
        let News { choice, what } = news;
        let order = &self.running.order;
        let is_alone = order.is_prompt_alone(choice);
        let echoed = order.echo_of(choice);
        let mut end_of_prompt = String::new();
        let (delta, ending) = match what {
            What::Prompt { logprobs, .. } => return self.prompt(choice, &logprobs),
            What::Grown(delta, _) => (delta, None),
            What::Ended(mut ended) => {
                if is_alone {
                    ended.answer = ended.answer.emptied();
                }
                let finish_reason = FinishReason::of(&ended.answer);
                if let Some(prompt) = echoed {
                    let text = ended.answer.text.as_deref().unwrap_or_default();
                    prompt
                        .rest_before(text, &ended.answer.token_ids)
                        .clone_into(&mut end_of_prompt);
                }
                (ended.rest, Some(Ending { finish_reason, error: ended.answer.error }))
            }
            What::Failed(_) | What::Lost(_) => return None,
        };
        let characters = echoed.map_or(0, EchoedPrompt::characters);
        let mut delta = if is_alone { Delta::default() } else { delta };
        delta.text.insert_str(0, &end_of_prompt);
        let is_first = self.is_first[choice];
        Some(self.head.choice(choice, is_first, delta, ending).moved(characters))
    }

    /// Returns the content of an echoed prompt.
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
            prompt_token_ids: None,
            error: None,
        })
    }

    fn chunk(&mut self, mut choices: Vec<ChunkChoice>, bytes: &mut Vec<u8>) {
        let request = &self.running.order.request;
        let options = self.running.order.stream.unwrap_or_default();
        let mut of_chat = None;
        if let Some(choice) = choices.first_mut()
            && std::mem::replace(&mut self.is_first[choice.index()], false)
        {
            let of_prompt = prompt_token_ids(request, choice.index());
            match choice {
                ChunkChoice::Chat { .. } => of_chat = of_prompt,
                ChunkChoice::Text { prompt_token_ids, .. } => *prompt_token_ids = of_prompt,
            }
        }
        let is_last = choices.is_empty();
        let usage: Option<Option<Usage>> = if options.continuous_usage || is_last {
            Some(Some(self.running.usage()))
        } else {
            options.include_usage.then_some(None)
        };
        event(&Chunk::new(&self.head, choices, of_chat, usage), bytes);
    }
}

/// Returns true if an event takes long to write.
fn is_long(news: &News) -> bool {
    let size = match &news.what {
        What::Prompt { logprobs, .. } => logprobs.len(),
        What::Grown(delta, _) => delta.token_ids.len(),
        What::Ended(ended) => {
            let width = ended.rest.logprobs.as_ref().map_or(1, |_| SPELLED_AT_ONCE);
            ended.rest.token_ids.len() * width
        }
        What::Failed(_) | What::Lost(_) => 0,
    };
    size > WRITTEN_AT_ONCE
}

fn event(body: &impl Serialize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *bytes, body).expect("a list of bytes takes everything");
    bytes.extend_from_slice(b"\n\n");
}
