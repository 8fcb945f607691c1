//! Stagings of a model's weights on drives: their contents, location, format and read rates.

pub(crate) mod balance;
pub mod direct;
mod form;
pub(crate) mod measured;
pub(crate) mod nvme;
mod obtain;
mod write;

pub(crate) use form::StagedWeights;
pub(crate) use write::{Interrupted, Staging, stage};
