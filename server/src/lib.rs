//! The HTTP server: receives requests from sockets and returns answers as they are computed.
//!
//! The server never sees a worker, only an engine that continues prompts
//! ([`Engine`](engine_api::serving::Engine)). A request takes a permit, is parsed and
//! tokenised on threads that may block (`blocking`), and is submitted to the engine. The engine's
//! events go to threads that turn tokens into text (`detokenizer_pool`, `finishers`), and from
//! there to the task that serves the connection (`json_response`, `stream`). When a connection
//! ends, everything that it holds is dropped, which cancels its requests.

mod activity;
mod admission;
mod answer_events;
mod answer_memory;
pub mod api_key;
mod background_responses;
mod background_task;
mod batch_metrics;
mod batches;
mod blocking;
mod body_reader;
mod buffered_body;
mod client_stream;
mod clock;
mod completions;
pub mod config;
mod connections;
mod conversation;
pub mod cross_site;
mod descriptors;
mod detokenizer_pool;
mod disconnect;
mod embeddings;
mod error;
mod finishers;
mod histograms;
mod in_flight;
mod json_response;
mod message_errors;
mod metrics;
mod models;
mod page;
mod parsed_request;
mod prompt_request;
mod prompt_results;
mod query;
mod reply;
mod request_api;
mod request_id;
mod request_log;
mod rerank;
mod response_store;
mod responses;
mod routes;
mod run;
mod single_response;
mod state;
mod stored_response;
mod stream;
mod tokens;

pub use run::{Server, ServerError, ShutdownSummary};

#[cfg(test)]
mod tests;
