//! Load generator for servers. Requests begin at scheduled times, no matter how long others take,
//! and the times of their answers are recorded.
//!
//! A [`workload`] is generated in advance ([`arrivals`], [`lengths`]); [`client`] sends one request
//! in the format of the server's API ([`api`]); [`drive`] sends all of them; [`figures`] computes
//! the results that `vllm bench serve` reports, and [`table`] formats them like it.

pub mod api;
pub mod arrivals;
pub mod client;
pub mod drive;
mod events;
pub mod figures;
pub mod lengths;
pub mod record;
pub mod slo;
pub mod table;
pub mod target;
pub mod workload;

#[cfg(test)]
mod tests;
