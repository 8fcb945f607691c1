//! Tests of the server on real sockets, with an engine that computes answers from prompts alone.

mod background;
mod batch_client;
mod batches;
mod bounds;
mod clients;
mod context_length;
mod cross_site;
mod drain;
mod embeddings;
mod endpoints;
mod fake_engine;
mod files;
mod http;
mod http_edges;
mod limits;
mod messages;
mod reasoning;
mod refusals;
mod response_batches;
mod responses;
mod schema;
mod streams;
mod test_server;
mod tools;
mod vllm_fields;
