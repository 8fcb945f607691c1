//! Implementation of each command, from its parsed arguments to the exit code.

pub mod bench_serve;
mod benchmark;
pub mod cache;
pub mod device_rates;
pub mod doctor;
mod drive_rates;
mod export;
mod iteration_costs;
pub mod plan;
pub mod profile;
pub mod pull;
pub mod report;
pub mod run;
pub mod score;
pub mod serve;
mod serving_job;
mod small_copies;
pub mod stage;
pub mod timed;
mod workload_shape;
