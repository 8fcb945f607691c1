//! Stagings of a model's weights on drives: their contents, location, format and read rates.

pub(crate) mod balance;
pub mod direct;
pub(crate) mod drive_measurement;
pub(crate) mod nvme;
mod obtain;
mod staged_weights;
mod write;

pub(crate) use staged_weights::StagedWeights;
pub(crate) use write::{Interrupted, Staging, stage};
