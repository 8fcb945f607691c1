//! Streams of `/v1/responses`.

use std::sync::Arc;

use openai::responses::events::ResponseEvents;
use openai::responses::response::ResponseHead;

use super::writer::EventWriter;
use crate::answer_events::{AnswerEvent, AnswerEventKind};
use crate::clock::now_s;
use crate::error::ApiError;
use crate::in_flight::InFlightRequest;
use crate::state::ServerState;
use crate::stored_response::store_response;

/// Writer of the events of a response.
pub struct ResponseWriter {
    shared: Arc<ServerState>,
    events: ResponseEvents,
}

impl ResponseWriter {
    /// Creates the writer of a response.
    pub fn new(head: ResponseHead, shared: &Arc<ServerState>) -> ResponseWriter {
        ResponseWriter { shared: Arc::clone(shared), events: ResponseEvents::new(head) }
    }
}

impl EventWriter for ResponseWriter {
    fn begin(&mut self, bytes: &mut Vec<u8>) {
        self.events.begin(bytes);
    }

    fn write(&mut self, event: AnswerEvent, in_flight: &InFlightRequest, bytes: &mut Vec<u8>) {
        match event.kind {
            AnswerEventKind::Delta(delta, _) => self.events.write(delta, bytes),
            AnswerEventKind::Completed(ended) => {
                let answer = &ended.answer;
                self.events.write(ended.final_delta, bytes);
                self.events.end_items(answer, bytes);
                let response = self.events.response(answer, &in_flight.usage(), now_s());
                let response = store_response(&response, self.events.head(), &self.shared);
                self.events.end(answer, &response, bytes);
            }
            AnswerEventKind::Prompt { .. }
            | AnswerEventKind::Failed(_)
            | AnswerEventKind::DetokenizationFailed(_) => {}
        }
    }

    fn end(&mut self, _in_flight: &InFlightRequest, _bytes: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, bytes: &mut Vec<u8>) {
        self.events.fail(error.message(), bytes);
    }

    fn is_blocking(&self, event: &AnswerEvent) -> bool {
        let is_last = matches!(event.kind, AnswerEventKind::Completed(_));
        is_last && self.events.head().settings.is_stored
    }
}
