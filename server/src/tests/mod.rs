//! Tests of the server on real sockets, with an engine that computes answers from prompts alone.

mod bounds;
mod clients;
mod context_length;
mod cross_site;
mod drain;
mod endpoints;
mod fake_engine;
mod http;
mod http_edges;
mod limits;
mod reasoning;
mod refusals;
mod schema;
mod streams;
mod test_server;
mod tools;
