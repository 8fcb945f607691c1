//! Stagings of a model's weights on drives: their contents, location, format and read rates.

pub mod balance;
pub mod direct;
pub mod drive_measurement;
pub mod nvme;
mod obtain;
mod outdated;
mod staged_weights;
mod write;

pub use staged_weights::StagedWeights;
pub use write::{Interrupted, Staging, stage};
