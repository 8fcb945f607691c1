//! Implementation of each command, from its parsed arguments to the exit code.

pub mod bench_serve;
mod benchmark;
pub mod cache;
pub mod device_rates;
pub mod doctor;
mod drives;
mod export;
mod iteration_costs;
mod load_shape;
pub mod plan;
pub mod profile;
mod prompts;
pub mod pull;
pub mod report;
pub mod run;
pub mod score;
pub mod serve;
mod small_copies;
pub mod stage;
pub mod timed;
