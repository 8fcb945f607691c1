//! Arguments that are refused late.

/// An argument that only turns out to be wrong once the model is known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
