//! Limits of tables and of runs of them.

/// Names of a layer's operations, in order, for error messages.
pub(super) const OPT: &str = "ln0 q k v scores softmax wv out ln1 fc0 fc1";
pub(super) const LLAMA: &str = "norm0 q k v scores softmax wv out norm1 gate up down";

/// Maximum duration: waits between lanes are limited to minutes.
pub(super) const TIME_MAX_MS: f64 = 120_000.0;
/// Maximum number of layers, more than any model has.
pub(super) const LAYERS_MAX: usize = 1024;
pub(super) const GEN_LEN_MAX: u32 = 65_536;
