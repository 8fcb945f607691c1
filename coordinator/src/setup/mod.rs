//! Preparation of a run: the model, the machine and its profile, the formats of weights and caches,
//! the placement, and the start of the engine.

pub mod argument_error;
pub mod auto_batches;
pub(crate) mod byte_progress_bar;
pub(crate) mod compression;
pub mod expanded_weights;
pub mod fit_suggestions;
pub mod formats;
pub mod hardware;
pub(crate) mod hybrid_placement;
mod kv_select;
pub(crate) mod machine_plan;
pub(crate) mod measured_machine;
pub mod model;
mod numa_nodes;
pub mod placement;
pub mod plan_request;
pub mod prediction;
pub mod pricing;
pub mod profile;
pub(crate) mod progress_reporter;
mod prompt_cache;
pub mod rehearsal;
pub mod run_history;
pub(crate) mod serving;
pub mod staging;
pub mod start;
pub mod weights_identity;
pub(crate) mod writable;
