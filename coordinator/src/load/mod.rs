//! Load for a server: requests that begin when a schedule says so, however long others take, and
//! what their answers lasted.
//!
//! A [`workload`] is drawn ahead ([`arrivals`], [`lengths`]); [`client`] sends one request in the
//! form that the server understands ([`api`]); [`drive`] sends them all; [`figures`] are what
//! `vllm bench serve` counts, and [`table`] prints them as it does.

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
