//! Tests of the server on real sockets, with an engine that computes answers from prompts alone.

mod bounds;
mod clients;
mod context_length;
mod cross_site;
mod desk;
mod drain;
mod endpoints;
mod engine;
mod http;
mod http_edges;
mod limits;
mod reasoning;
mod refusals;
mod schema;
mod streams;
mod tools;
