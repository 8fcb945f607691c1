//! What a user sees of Tandem: arguments, the batch job, its files. `main.rs` is only the door.

pub mod cli;
pub mod exit;
pub mod job;
