//! Preparation of a run: the model, the machine and its profile, the formats of weights and caches,
//! the placement, and the start of the engine.

pub mod auto_batches;
pub(crate) mod bar;
pub(crate) mod described;
pub mod expanded_weights;
pub mod finished;
pub(crate) mod form;
pub mod formats;
pub mod hardware;
pub(crate) mod measured_machine;
pub mod memory_advice;
pub mod model;
mod nodes;
pub(crate) mod owners;
pub mod placement;
pub mod plan_request;
pub mod prediction;
pub mod pricing;
pub mod profile;
pub(crate) mod progress_reporter;
mod prompt_cache;
pub mod rehearsal;
mod select;
pub(crate) mod serving;
pub mod staging;
pub mod start;
pub mod usage;
pub mod weights_identity;
pub(crate) mod writable;
