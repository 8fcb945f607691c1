//! Streams of `/v1/messages`.

use std::sync::Arc;

use openai::messages::error::MessagesError;
use openai::messages::events::MessageEvents;
use openai::output::Provenance;
use openai::sse::write_named_event;

use super::writer::EventWriter;
use crate::answer_events::{AnswerEvent, AnswerEventKind};
use crate::error::ApiError;
use crate::in_flight::InFlightRequest;
use crate::parsed_request::ParsedRequest;

/// Writer of the events of a message.
pub struct MessageWriter(MessageEvents);

impl MessageWriter {
    /// Creates the writer of the answer to a request.
    pub fn new(parsed: &ParsedRequest, provenance: &Provenance) -> MessageWriter {
        let request = Arc::clone(&parsed.request);
        MessageWriter(MessageEvents::new(request, provenance.model.clone()))
    }
}

impl EventWriter for MessageWriter {
    fn write(&mut self, event: AnswerEvent, in_flight: &InFlightRequest, bytes: &mut Vec<u8>) {
        let usage = in_flight.usage();
        self.0.begin(&usage, bytes);
        match event.kind {
            AnswerEventKind::Prompt { .. } => {}
            AnswerEventKind::Delta(delta, _) => self.0.write(delta, bytes),
            AnswerEventKind::Completed(ended) => {
                self.0.write(ended.final_delta, bytes);
                match &ended.answer.error {
                    Some(error) => self.fail(&ApiError::internal(error.clone()), bytes),
                    None => self.0.end(&ended.answer, &usage, bytes),
                }
            }
            AnswerEventKind::Failed(_) | AnswerEventKind::DetokenizationFailed(_) => {}
        }
    }

    fn end(&mut self, _in_flight: &InFlightRequest, _bytes: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, bytes: &mut Vec<u8>) {
        let error = MessagesError::new(error.status().as_u16(), error.message(), None, None);
        write_named_event("error", &error, bytes);
    }

    fn write_keep_alive(&self, bytes: &mut Vec<u8>) {
        MessageEvents::write_ping(bytes);
    }
}
