//! Streams of OpenAI's completion endpoints.

use std::sync::Arc;

use engine_api::event::Logprob;
use openai::answer_accumulator::AnswerDelta;
use openai::chunk::{ChoiceEnd, ChunkChoice, ChunkHeader, CompletionChunk};
use openai::echo::EchoedPrompt;
use openai::output::{FinishReason, Provenance, Usage, prompt_token_ids};
use serde::Serialize;

use super::writer::EventWriter;
use crate::answer_events::{AnswerEvent, AnswerEventKind};
use crate::config::ModelCard;
use crate::error::ApiError;
use crate::in_flight::InFlightRequest;
use crate::parsed_request::ParsedRequest;
use crate::state::ServerState;

/// Last event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Writer of chunks of completions.
pub struct ChunkWriter {
    shared: Arc<ServerState>,
    head: ChunkHeader,
    /// True for each answer of which nothing was sent yet.
    is_first: Vec<bool>,
}

impl EventWriter for ChunkWriter {
    fn write(&mut self, event: AnswerEvent, in_flight: &InFlightRequest, bytes: &mut Vec<u8>) {
        if let Some(choice) = self.chunk_choice(event, in_flight) {
            self.write_chunk(vec![choice], in_flight, bytes);
        }
    }

    fn end(&mut self, in_flight: &InFlightRequest, bytes: &mut Vec<u8>) {
        if in_flight.parsed.stream.is_some_and(|stream| stream.include_usage) {
            self.write_chunk(Vec::new(), in_flight, bytes);
        }
        bytes.extend_from_slice(DONE);
    }

    fn fail(&mut self, error: &ApiError, bytes: &mut Vec<u8>) {
        write_event(&error.envelope(), bytes);
        bytes.extend_from_slice(DONE);
    }
}

impl ChunkWriter {
    /// Creates the writer of the answers to a request.
    pub fn new(
        parsed: &ParsedRequest,
        provenance: &Provenance,
        shared: &Arc<ServerState>,
    ) -> ChunkWriter {
        let is_first = vec![true; parsed.request.choice_count()];
        let head = ChunkHeader::new(&parsed.request, provenance);
        ChunkWriter { shared: Arc::clone(shared), head, is_first }
    }

    /// Returns the content of an event for its answer; `None` if there is nothing to send.
    fn chunk_choice(
        &mut self,
        event: AnswerEvent,
        in_flight: &InFlightRequest,
    ) -> Option<ChunkChoice> {
        let AnswerEvent { choice, kind } = event;
        let order = &in_flight.parsed;
        let is_prompt_only = order.is_prompt_only(choice);
        let echoed = order.echoed_prompt(choice);
        let mut prompt_suffix = String::new();
        let (delta, ending) = match kind {
            AnswerEventKind::Prompt { logprobs, .. } => {
                return self.prompt_choice(choice, &logprobs, in_flight);
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
        &self,
        choice: usize,
        logprobs: &[Logprob],
        in_flight: &InFlightRequest,
    ) -> Option<ChunkChoice> {
        let model: &ModelCard = &self.shared.model;
        let known = in_flight.parsed.prompt_output(choice, logprobs, model).echoed_logprobs();
        let text = in_flight.parsed.echoed_prompt(choice)?.text.clone();
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

    fn write_chunk(
        &mut self,
        mut choices: Vec<ChunkChoice>,
        in_flight: &InFlightRequest,
        bytes: &mut Vec<u8>,
    ) {
        let request = &in_flight.parsed.request;
        let options = in_flight.parsed.stream.unwrap_or_default();
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
            Some(Some(in_flight.usage()))
        } else {
            options.include_usage.then_some(None)
        };
        write_event(&CompletionChunk::new(&self.head, choices, chat_prompt_ids, usage), bytes);
    }
}

fn write_event(body: &impl Serialize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *bytes, body).expect("a list of bytes takes everything");
    bytes.extend_from_slice(b"\n\n");
}
