//! Tools for researchers: measurements of servers, devices, drives and of the runtime itself, and
//! simulations of machines that are not present.
//!
//! - [`bench_serve`] measures a running server with the load generator ([`load`]).
//! - [`serving`] simulates requests that arrive at a described machine, or at a server that
//!   measured its iterations ([`iteration_costs`]), under every scheduling policy.
//! - [`timed`] runs programs on the real processes without computing anything.
//! - [`device_rates`] and [`drive_rates`] measure hardware; [`benchmark`] is the workload of a run
//!   without input.
//!
//! Depends on `session`, as commands do, and on `report` for tables. The command line depends on
//! this crate, not the reverse: [`request`] has what it passes.

// Its `eprintln!` and `eprint!` shadow those of the standard library: no message bypasses it.
#[macro_use]
extern crate session;

pub mod bench_serve;
pub mod benchmark;
pub mod device_rates;
pub mod drive_rates;
pub mod iteration_costs;
pub mod load;
pub mod request;
pub mod serving;
mod small_copies;
pub mod timed;
mod workload_shape;
