//! Reasons for which a file is not quantised.

use model::source::SourceError;
use text::tokenizer::TokenizerError;

/// Reason for which no file was written.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path} exists; use --force to overwrite it, or another name")]
    Exists { path: String },
    #[error(
        "{path}: the file needs {needed_bytes} bytes, but the drive has {available_bytes} free"
    )]
    Space { path: String, needed_bytes: u64, available_bytes: u64 },
    #[error(
        "models of the family {family:?} cannot be converted to GGUF ({reason}); quantise a GGUF \
         file of the model instead"
    )]
    Family { family: String, reason: String },
    #[error("the tokenizer cannot be converted to GGUF: {reason}")]
    Tokenizer { reason: String },
    #[error(transparent)]
    TokenizerFile(#[from] TokenizerError),
    #[error("tensor {tensor} contains infinities or NaN")]
    NotFinite { tensor: String },
    #[error("interrupted")]
    Interrupted,
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
}
