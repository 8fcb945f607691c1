//! Arguments that are refused after parsing.

/// Error about an argument that turns out to be invalid only when the model is known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ArgumentError(pub String);
