//! The HTTP server: receives requests from sockets and returns answers as they are computed.
//!
//! The server never sees a worker, only an engine that continues prompts
//! ([`Serving`](crate::boundary::serving::Serving)). A request takes a ticket, is parsed and
//! tokenised on threads that may block (`blocking`), and is submitted to the engine. The engine's
//! events go to threads that turn tokens into text (`tellers`, `finishers`), and from there to the
//! task that serves the connection (`whole`, `stream`). When a connection ends, everything that it
//! holds is dropped, which cancels its requests.

mod activity;
mod admission;
mod answer_memory;
pub mod api_key;
mod blocking;
mod buckets;
mod client_stream;
mod completions;
mod connections;
pub mod cross_site;
mod departure;
mod descriptors;
mod error;
pub mod facts;
mod finishers;
mod inbound;
mod log;
mod metrics;
mod models;
mod order;
mod reply;
mod request_id;
mod routes;
mod run;
mod running;
mod sequence;
mod shared;
mod stream;
mod tellers;
mod tokens;
mod whole;

pub use run::{Served, Server, ServerError};

#[cfg(test)]
mod tests;
