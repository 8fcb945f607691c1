//! Answers that are told while they grow, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;
use serde::Serialize;

use super::error::ApiError;
use super::facts::ModelCard;
use super::running::Running;
use super::sequence::{News, What};
use super::shared::Shared;
use crate::openai::chunk::{Chunk, ChunkChoice, ChunkHead, Ending};
use crate::openai::echo::EchoedPrompt;
use crate::openai::growing::Delta;
use crate::openai::output::{FinishReason, Provenance, Usage};

/// Between two signs of life where there is nothing to tell.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// Bytes of events that are sent together, about.
const TOGETHER_BYTES: usize = 16 << 10;

/// The last event.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The answer to a request as a stream.
pub fn answer(running: Running, provenance: &Provenance, shared: &Arc<Shared>) -> Response {
    let head = ChunkHead::new(&running.order.request, provenance);
    let is_first = vec![true; running.order.request.choices()];
    let events = Events { shared: Arc::clone(shared), running, head, is_first, is_over: false };
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
    is_over: bool,
}

impl Events {
    /// The next bytes; `None` behind the last.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Events)> {
        if self.is_over {
            return None;
        }
        let mut bytes = Vec::new();
        match tokio::time::timeout(ALIVE_EVERY, self.running.next()).await {
            Err(_) => bytes.extend_from_slice(b": still here\n\n"),
            Ok(news) => self.write(news, &mut bytes),
        }
        while !self.is_over && bytes.len() < TOGETHER_BYTES {
            let Some(news) = self.running.try_next() else { break };
            self.write(news, &mut bytes);
        }
        Some((Ok(bytes.into()), self))
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
        let echoed = order.echo_of(choice);
        let mut end_of_prompt = String::new();
        let (delta, ending) = match what {
            What::Prompt { logprobs, .. } => return self.prompt(choice, &logprobs),
            What::Grown(delta) => (delta, None),
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

fn event(body: &impl Serialize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *bytes, body).expect("a list of bytes takes everything");
    bytes.extend_from_slice(b"\n\n");
}
