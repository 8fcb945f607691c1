//! The server on real sockets, before an engine that computes answers from prompts alone.

mod bounds;
mod clients;
mod context_length;
mod desk;
mod drain;
mod endpoints;
mod engine;
mod http;
mod reasoning;
mod refusals;
mod schema;
mod streams;
mod tools;
