//! Load generator for servers. Requests begin at scheduled times, no matter how long others take,
//! and the times of their answers are recorded.
//!
//! A workload ([`workload`]) is generated in advance ([`arrivals`], [`lengths`]); [`client`]
//! sends one request in the format of the server's API ([`api`]); [`runner`] sends all of them;
//! [`results`] computes the results that `vllm bench serve` reports, and [`format_table`] formats
//! them like it.

pub mod api;
pub mod arrivals;
pub mod client;
pub mod lengths;
pub mod record;
pub mod results;
pub mod runner;
pub mod server_url;
pub mod slo;
mod sse_parser;
pub mod table;
pub mod workload;

#[cfg(test)]
mod tests;
