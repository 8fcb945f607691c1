//! Streamed answers, as server-sent events.

mod chunks;
mod event_stream;
mod messages;
mod responses;
mod writer;

use std::sync::Arc;

use axum::response::Response;
use openai::output::Provenance;

use super::activity::Activity;
use super::in_flight::InFlightRequest;
use super::request_api::RequestApi;
use super::state::ServerState;
use chunks::ChunkWriter;
use messages::MessageWriter;
use responses::ResponseWriter;
use writer::EventWriter;

/// Returns the streamed response to a request.
pub fn answer(
    in_flight: InFlightRequest,
    provenance: &Provenance,
    shared: &Arc<ServerState>,
    activity: Option<Arc<Activity>>,
) -> Response {
    let parsed = &in_flight.parsed;
    let writer: Box<dyn EventWriter> = match parsed.api {
        RequestApi::Completions | RequestApi::ChatCompletions => {
            Box::new(ChunkWriter::new(parsed, provenance, shared))
        }
        RequestApi::Messages => Box::new(MessageWriter::new(parsed, provenance)),
        RequestApi::Responses => {
            Box::new(ResponseWriter::new(parsed.response_head(provenance.clone()), shared))
        }
    };
    event_stream::answer(in_flight, writer, shared, activity)
}
