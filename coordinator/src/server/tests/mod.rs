//! The server on real sockets, before an engine that computes answers from prompts alone.

mod bounds;
mod clients;
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
mod streams;
mod tools;
