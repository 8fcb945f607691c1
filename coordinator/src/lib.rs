//! What a user sees of Tandem: arguments, the batch job, launch and supervision of the workers,
//! reports. `main.rs` is only the door.

pub mod benchmark;
pub mod cli;
pub mod doctor;
pub mod engine;
pub mod exit;
pub mod expanded;
pub mod job;
pub mod opened;
pub mod plan;
pub mod profile;
mod profiling;
pub mod rates;
pub mod report;
pub mod session;
pub mod text;
pub mod timed;
pub mod weights_identity;
