//! Answers that are not streamed. The tokens of their log-probabilities are turned into text only
//! when an answer is written, for long answers one choice at a time, so that only one choice's text
//! is in memory.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use engine_api::codec::TextCodec;
use engine_api::event::Logprob;
use futures_util::stream::unfold;
use openai::output::{
    FinishedChoice, Provenance, ResponseBody, Usage, finish_choice, response_body,
};
use openai::stop::Answer;
use serde::Serialize;

use super::answer_events::{AnswerEventKind, CompletedAnswer};
use super::answer_memory::AnswerMemoryPermit;
use super::error::ApiError;
use super::in_flight::InFlightRequest;
use super::parsed_request::ParsedRequest;
use super::reply::json;
use super::single_response::SingleResponse;
use super::state::ServerState;

/// Maximum number of tokens and log-probabilities of an answer that is serialised on a socket
/// thread.
const INLINE_ENTRIES_MAX: usize = 4096;

/// List of choices in an answer without choices.
const NO_CHOICES: &[u8] = b"\"choices\":[]";

/// Waits for all answers and returns the response.
///
/// # Errors
/// Some answers did not end; see [`InFlightRequest::next_data`].
pub async fn answer(
    mut in_flight: InFlightRequest,
    provenance: Provenance,
    shared: &Arc<ServerState>,
) -> Result<Response, ApiError> {
    let choices = in_flight.parsed.request.choice_count();
    let mut answers: Vec<Option<Box<CompletedAnswer>>> = (0..choices).map(|_| None).collect();
    let mut prompts: Vec<Vec<Logprob>> = vec![Vec::new(); choices];
    while in_flight.is_open() {
        let event = in_flight.next().await?;
        match event.kind {
            AnswerEventKind::Prompt { logprobs, .. } => prompts[event.choice] = logprobs,
            AnswerEventKind::Completed(ended) => answers[event.choice] = Some(ended),
            AnswerEventKind::Delta(..)
            | AnswerEventKind::Failed(_)
            | AnswerEventKind::DetokenizationFailed(_) => {}
        }
    }
    let usage = in_flight.usage();
    let memory = in_flight.take_memory_permit();
    let parsed = Arc::clone(&in_flight.parsed);
    drop(in_flight);
    let answers = answers.into_iter().flatten().zip(prompts).enumerate();
    let answers: Vec<_> =
        answers.map(|(choice, (answers, prompt))| (choice, answers, prompt)).collect();
    if !parsed.api.has_choices() {
        let ended = answers.into_iter().next().map(|(_, ended, _)| ended);
        let ended = ended.ok_or_else(|| ApiError::internal("The request has no answer."))?;
        let shared = Arc::clone(shared);
        let single = SingleResponse { shared, parsed, provenance, usage, ended };
        return single.respond(memory).await;
    }
    let response = JsonResponse { shared: Arc::clone(shared), parsed, provenance, usage };
    if answers.iter().map(entries).sum::<usize>() <= INLINE_ENTRIES_MAX {
        let choices = answers.into_iter().map(|answer| response.finish_choice(answer)).collect();
        return Ok(json(StatusCode::OK, &response.body(choices)));
    }
    let body = serde_json::to_vec(&response.body(Vec::new()));
    let body = body.map_err(|error| {
        ApiError::internal(format!("The answer could not be serialised: {error}."))
    })?;
    let at = body.windows(NO_CHOICES.len()).position(|window| window == NO_CHOICES);
    let at = at.ok_or_else(|| ApiError::internal("The answer has no list of choices."))?;
    let (head, tail) = body.split_at(at + NO_CHOICES.len() - 1);
    let stream = ChoiceStream {
        response: Some(response),
        head: head.to_vec(),
        answers: answers.into_iter(),
        tail: tail.to_vec(),
        _memory: memory,
    };
    let body = Body::from_stream(unfold(stream, ChoiceStream::next));
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

/// Index of a choice, its answer, and the log-probabilities of its prompt.
type CompletedChoice = (usize, Box<CompletedAnswer>, Vec<Logprob>);

/// Returns the number of tokens and log-probabilities to write.
fn entries((_, ended, prompt): &CompletedChoice) -> usize {
    let logprobs = ended.logprobs.as_ref().map_or(0, |logprobs| logprobs.len());
    ended.answer.token_ids.len() + logprobs + prompt.len()
}

/// Data that all choices of a response share.
struct JsonResponse {
    shared: Arc<ServerState>,
    parsed: Arc<ParsedRequest>,
    provenance: Provenance,
    usage: Usage,
}

impl JsonResponse {
    fn finish_choice(&self, (choice, ended, prompt): CompletedChoice) -> FinishedChoice {
        let (order, model) = (&self.parsed, &self.shared.model);
        let codec = model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        let CompletedAnswer { answer, logprobs, .. } = *ended;
        let answer = Answer { logprobs: logprobs.map(|found| found.decode(codec)), ..answer };
        let answer = if order.is_prompt_only(choice) { answer.without_tokens() } else { answer };
        let mut finished = finish_choice(&order.request, choice, answer);
        order.prompt_output(choice, &prompt, model).add_to(&mut finished);
        finished
    }

    fn body(&self, made: Vec<FinishedChoice>) -> ResponseBody {
        let body = response_body(&self.parsed.request, made, &self.provenance);
        ResponseBody { usage: self.usage, ..body }
    }
}

/// A response that is written choice by choice, as its client receives it.
struct ChoiceStream {
    /// `None` while a choice is being written.
    response: Option<JsonResponse>,
    /// Bytes that precede the next choice.
    head: Vec<u8>,
    answers: std::vec::IntoIter<CompletedChoice>,
    /// Bytes that follow the last choice; empty once they are written.
    tail: Vec<u8>,
    _memory: Option<AnswerMemoryPermit>,
}

impl ChoiceStream {
    /// Returns the next bytes; `None` after the last.
    async fn next(mut self) -> Option<(io::Result<Bytes>, ChoiceStream)> {
        let mut bytes = std::mem::replace(&mut self.head, b",".to_vec());
        let Some(choice) = self.answers.next() else {
            let tail = std::mem::take(&mut self.tail);
            return (!tail.is_empty()).then(|| (Ok(tail.into()), self));
        };
        let whole = self.response.take()?;
        let shared = Arc::clone(&whole.shared);
        let write = move || {
            write(&whole.finish_choice(choice).choice, &mut bytes);
            Ok((bytes, whole))
        };
        let written = match shared.blocking_pools.writing.run(write).await {
            Ok((bytes, whole)) => {
                self.response = Some(whole);
                Ok(bytes.into())
            }
            // The connection ends in the middle of the response, so that no client mistakes it for
            // a complete one.
            Err(_) => Err(io::Error::other("a choice could not be written")),
        };
        Some((written, self))
    }
}

fn write(value: &impl Serialize, bytes: &mut Vec<u8>) {
    serde_json::to_writer(bytes, value).expect("a list of bytes takes everything");
}
