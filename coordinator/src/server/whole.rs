//! Answers that are not streamed. The tokens of their log-probabilities are turned into text only
//! when an answer is written, for long answers one choice at a time, so that only one choice's text
//! is in memory.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream::unfold;
use serde::Serialize;

use super::answer_memory::AnswerMemoryPermit;
use super::error::ApiError;
use super::order::Order;
use super::reply::json;
use super::running::Running;
use super::sequence::{Ended, What};
use super::shared::Shared;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Logprob;
use crate::openai::output::{Done, Provenance, ResponseBody, Usage, done, response_body};
use crate::openai::stop::Answer;

/// Maximum number of tokens and log-probabilities of an answer that is serialised on a socket
/// thread.
const WRITTEN_AT_ONCE: usize = 4096;

/// List of choices in an answer without choices.
const NO_CHOICES: &[u8] = b"\"choices\":[]";

/// Waits for all answers and returns the response.
///
/// # Errors
/// Some answers did not end; see [`Running::next`].
pub async fn answer(
    mut running: Running,
    provenance: Provenance,
    shared: &Arc<Shared>,
) -> Result<Response, ApiError> {
    let choices = running.order.request.choices();
    let mut answers: Vec<Option<Box<Ended>>> = (0..choices).map(|_| None).collect();
    let mut prompts: Vec<Vec<Logprob>> = vec![Vec::new(); choices];
    while running.is_open() {
        let news = running.next().await?;
        match news.what {
            What::Prompt { logprobs, .. } => prompts[news.choice] = logprobs,
            What::Ended(ended) => answers[news.choice] = Some(ended),
            What::Grown(..) | What::Failed(_) | What::Lost(_) => {}
        }
    }
    let usage = running.usage();
    let memory = running.take_memory();
    let order = Arc::clone(&running.order);
    drop(running);
    let ended = answers.into_iter().flatten().zip(prompts).enumerate();
    let ended: Vec<_> = ended.map(|(choice, (ended, prompt))| (choice, ended, prompt)).collect();
    let whole = Whole { shared: Arc::clone(shared), order, provenance, usage };
    if ended.iter().map(size).sum::<usize>() <= WRITTEN_AT_ONCE {
        let made = ended.into_iter().map(|one| whole.made(one)).collect();
        return Ok(json(StatusCode::OK, &whole.body(made)));
    }
    let body = serde_json::to_vec(&whole.body(Vec::new()));
    let body = body.map_err(|error| {
        ApiError::internal(format!("The answer could not be serialised: {error}."))
    })?;
    let at = body.windows(NO_CHOICES.len()).position(|window| window == NO_CHOICES);
    let at = at.ok_or_else(|| ApiError::internal("The answer has no list of choices."))?;
    let (head, tail) = body.split_at(at + NO_CHOICES.len() - 1);
    let written = Written {
        whole: Some(whole),
        head: head.to_vec(),
        ended: ended.into_iter(),
        tail: tail.to_vec(),
        _memory: memory,
    };
    let body = Body::from_stream(unfold(written, Written::next));
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

/// Index of a choice, its answer, and the log-probabilities of its prompt.
type EndedChoice = (usize, Box<Ended>, Vec<Logprob>);

/// Returns the number of tokens and log-probabilities to write.
fn size((_, ended, prompt): &EndedChoice) -> usize {
    let logprobs = ended.logprobs.as_ref().map_or(0, |logprobs| logprobs.len());
    ended.answer.token_ids.len() + logprobs + prompt.len()
}

/// Data that all choices of a response share.
struct Whole {
    shared: Arc<Shared>,
    order: Arc<Order>,
    provenance: Provenance,
    usage: Usage,
}

impl Whole {
    fn made(&self, (choice, ended, prompt): EndedChoice) -> Done {
        let (order, model) = (&self.order, &self.shared.model);
        let codec = model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        let Ended { answer, logprobs, .. } = *ended;
        let answer = Answer { logprobs: logprobs.map(|found| found.spelled(codec)), ..answer };
        let answer = if order.is_prompt_alone(choice) { answer.emptied() } else { answer };
        let mut made = done(&order.request, choice, answer);
        order.of_prompt(choice, &prompt, model).tell(&mut made);
        made
    }

    fn body(&self, made: Vec<Done>) -> ResponseBody {
        let body = response_body(&self.order.request, made, &self.provenance);
        ResponseBody { usage: self.usage, ..body }
    }
}

/// A response that is written choice by choice, as its client receives it.
struct Written {
    /// `None` while a choice is being written.
    whole: Option<Whole>,
    /// Bytes that precede the next choice.
    head: Vec<u8>,
    ended: std::vec::IntoIter<EndedChoice>,
    /// Bytes that follow the last choice; empty once they are written.
    tail: Vec<u8>,
    _memory: Option<AnswerMemoryPermit>,
}

impl Written {
    /// Returns the next bytes; `None` after the last.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Written)> {
        let mut bytes = std::mem::replace(&mut self.head, b",".to_vec());
        let Some(choice) = self.ended.next() else {
            let tail = std::mem::take(&mut self.tail);
            return (!tail.is_empty()).then(|| (Ok(tail.into()), self));
        };
        let whole = self.whole.take()?;
        let shared = Arc::clone(&whole.shared);
        let write = move || {
            write(&whole.made(choice).choice, &mut bytes);
            Ok((bytes, whole))
        };
        let written = match shared.blocking.writing.run(write).await {
            Ok((bytes, whole)) => {
                self.whole = Some(whole);
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
