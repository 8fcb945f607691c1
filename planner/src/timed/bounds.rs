//! What tables and runs of them may hold.

/// Names of a layer's operations, in order, as a user reads them.
pub(super) const OPT: &str = "ln0 q k v scores softmax wv out ln1 fc0 fc1";
pub(super) const LLAMA: &str = "norm0 q k v scores softmax wv out norm1 gate up down";

/// Waits between lanes are bounded by minutes.
pub(super) const TIME_MAX_MS: f64 = 120_000.0;
/// More layers than any model has.
pub(super) const LAYERS_MAX: usize = 1024;
pub(super) const GEN_LEN_MAX: u32 = 65_536;
