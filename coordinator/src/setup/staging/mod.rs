//! Weights on drives: what is staged of a model, where, in which form, and how fast it is read.

pub(crate) mod balance;
pub mod direct;
mod form;
pub(crate) mod measured;
pub(crate) mod nvme;
mod obtain;
mod write;

pub(crate) use form::StagedWeights;
pub(crate) use write::{Interrupted, Staging, stage};
