//! Streamed answers, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;
use openai::answer_accumulator::AnswerDelta;
use openai::chunk::{ChoiceEnd, ChunkChoice, ChunkHeader, CompletionChunk};
use openai::echo::EchoedPrompt;
use openai::output::{FinishReason, Provenance, Usage, prompt_token_ids};
use serde::Serialize;
use tokio::time::sleep;

use super::activity::Activity;
use super::answer_events::{AnswerEvent, AnswerEventKind};
use super::config::ModelCard;
use super::error::ApiError;
use super::in_flight::InFlightRequest;
use super::state::ServerState;

/// Interval between two keep-alive comments while there are no events.
const SSE_KEEPALIVE: Duration = Duration::from_secs(15);

/// Approximate number of bytes of events that are sent together.
const SSE_FLUSH_BYTES: usize = 16 << 10;

/// Maximum number of tokens and log-probabilities of an event that is serialised on a socket
/// thread.
const INLINE_ENTRIES_MAX: usize = 1024;
/// Approximate number of log-probabilities per token.
const ENTRIES_PER_LOGPROB: usize = 8;

/// Last event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Returns the streamed response to a request.
pub fn answer(
    in_flight: InFlightRequest,
    provenance: &Provenance,
    shared: &Arc<ServerState>,
    activity: Option<Arc<Activity>>,
) -> Response {
    let head = ChunkHeader::new(&in_flight.parsed.request, provenance);
    let is_first = vec![true; in_flight.parsed.request.choice_count()];
    let shared = Arc::clone(shared);
    let events = EventStream { shared, in_flight, head, is_first, activity, is_finished: false };
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
    head: ChunkHeader,
    /// True for each answer of which nothing was sent yet.
    is_first: Vec<bool>,
    activity: Option<Arc<Activity>>,
    is_finished: bool,
}

impl EventStream {
    /// Returns the next bytes; `None` after the last event.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, EventStream)> {
        if self.is_finished {
            return None;
        }
        let mut bytes = Vec::new();
        let mut received = self.next_event().await;
        if received.is_none() {
            bytes.extend_from_slice(b": keep-alive\n\n");
        }
        while let Some(news) = received.take() {
            if news.as_ref().is_ok_and(is_large) {
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

    /// Waits for an event; returns `None` if a keep-alive comment is due.
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
                if let Some(choice) = self.chunk_choice(event) {
                    self.write_chunk(vec![choice], bytes);
                }
                if !self.in_flight.is_open() {
                    if self.in_flight.parsed.stream.is_some_and(|stream| stream.include_usage) {
                        self.write_chunk(Vec::new(), bytes);
                    }
                    self.is_finished = true;
                }
            }
            Err(error) => {
                write_event(&error.envelope(), bytes);
                self.is_finished = true;
            }
        }
        if self.is_finished {
            bytes.extend_from_slice(DONE);
        }
    }

    /// Returns the content of an event for its answer; `None` if there is nothing to send.
    fn chunk_choice(&mut self, event: AnswerEvent) -> Option<ChunkChoice> {
        let AnswerEvent { choice, kind } = event;
        let order = &self.in_flight.parsed;
        let is_prompt_only = order.is_prompt_only(choice);
        let echoed = order.echoed_prompt(choice);
        let mut prompt_suffix = String::new();
        let (delta, ending) = match kind {
            AnswerEventKind::Prompt { logprobs, .. } => {
                return self.prompt_choice(choice, &logprobs);
            }
            AnswerEventKind::Delta(delta, _) => (delta, None),
            AnswerEventKind::Completed(mut ended) => {
                if is_prompt_only {
                    ended.answer = ended.answer.without_tokens();
                }
                let finish_reason = FinishReason::from_answer(&ended.answer);
                if let Some(prompt) = echoed {
                    let text = ended.answer.text.as_deref().unwrap_or_default();
                    prompt
                        .separator_before(text, &ended.answer.token_ids)
                        .clone_into(&mut prompt_suffix);
                }
                (ended.final_delta, Some(ChoiceEnd { finish_reason, error: ended.answer.error }))
            }
            AnswerEventKind::Failed(_) | AnswerEventKind::DetokenizationFailed(_) => return None,
        };
        let characters = echoed.map_or(0, EchoedPrompt::char_count);
        let mut delta = if is_prompt_only { AnswerDelta::default() } else { delta };
        delta.text.insert_str(0, &prompt_suffix);
        let is_first = self.is_first[choice];
        Some(self.head.choice(choice, is_first, delta, ending).with_text_offset(characters))
    }

    /// Returns the content of an echoed prompt.
    fn prompt_choice(
        &mut self,
        choice: usize,
        logprobs: &[engine_api::event::Logprob],
    ) -> Option<ChunkChoice> {
        let model: &ModelCard = &self.shared.model;
        let known = self.in_flight.parsed.prompt_output(choice, logprobs, model).echoed_logprobs();
        let text = self.in_flight.parsed.echoed_prompt(choice)?.text.clone();
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

    fn write_chunk(&mut self, mut choices: Vec<ChunkChoice>, bytes: &mut Vec<u8>) {
        let request = &self.in_flight.parsed.request;
        let options = self.in_flight.parsed.stream.unwrap_or_default();
        let mut chat_prompt_ids = None;
        if let Some(choice) = choices.first_mut()
            && std::mem::replace(&mut self.is_first[choice.index()], false)
        {
            let prompt_ids = prompt_token_ids(request, choice.index());
            match choice {
                ChunkChoice::Chat { .. } => chat_prompt_ids = prompt_ids,
                ChunkChoice::Text { prompt_token_ids, .. } => *prompt_token_ids = prompt_ids,
            }
        }
        let is_last = choices.is_empty();
        let usage: Option<Option<Usage>> = if options.continuous_usage || is_last {
            Some(Some(self.in_flight.usage()))
        } else {
            options.include_usage.then_some(None)
        };
        write_event(&CompletionChunk::new(&self.head, choices, chat_prompt_ids, usage), bytes);
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

fn write_event(body: &impl Serialize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *bytes, body).expect("a list of bytes takes everything");
    bytes.extend_from_slice(b"\n\n");
}
