//! Implementation of each command, from its parsed arguments to the exit code.

pub mod cache;
pub mod doctor;
mod embedding_job;
mod export;
pub mod plan;
pub mod profile;
pub mod pull;
pub mod quantize;
pub mod report;
mod result_files;
pub mod run;
mod run_report;
pub mod score;
pub mod serve;
mod serving_job;
pub mod stage;
