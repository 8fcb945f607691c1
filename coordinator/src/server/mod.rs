//! Serving: requests from sockets, answers as they are computed.
//!
//! The server never sees a worker, only something that continues prompts
//! ([`Serving`](crate::boundary::serving::Serving)). A request takes a ticket, is read and
//! tokenised on threads that may wait (`blocking`), and given to the engine. What the engine tells
//! goes to threads that turn tokens into text (`tellers`, `finishers`), and from there to whoever
//! holds the connection (`whole`, `stream`). A connection that ends drops what it holds, which
//! cancels.

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
