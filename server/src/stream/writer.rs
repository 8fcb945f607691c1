//! Formats of streams.

use crate::answer_events::AnswerEvent;
use crate::error::ApiError;
use crate::in_flight::InFlightRequest;

/// Writer of the events of one stream.
pub trait EventWriter: Send + 'static {
    /// Writes what precedes all events.
    fn begin(&mut self, _bytes: &mut Vec<u8>) {}

    /// Writes an event of an answer.
    fn write(&mut self, event: AnswerEvent, in_flight: &InFlightRequest, bytes: &mut Vec<u8>);

    /// Writes the end of a stream whose answers are complete.
    fn end(&mut self, in_flight: &InFlightRequest, bytes: &mut Vec<u8>);

    /// Writes the end of a stream whose answers are not complete.
    fn fail(&mut self, error: &ApiError, bytes: &mut Vec<u8>);

    /// Writes bytes without meaning, which show that the server is alive.
    fn write_keep_alive(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(b": keep-alive\n\n");
    }

    /// Returns true if writing an event waits for a drive.
    fn is_blocking(&self, _event: &AnswerEvent) -> bool {
        false
    }
}
