//! Weights on drives: what is staged of a model, where, and in which form.

mod form;
mod obtain;
mod write;

pub(crate) use form::StagedWeights;
pub(crate) use obtain::obtain;
pub(crate) use write::{Interrupted, Staging, stage};
