//! Errors of batches that fail, from the errors of their jobs.

use std::io;

use batch::error::JobError;

use super::batch_record::BatchError;

/// Failure of an attempt to compute a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The batch cannot be computed.
    Final(BatchError),
    /// Another attempt may succeed; if it does not either, the batch fails with this error.
    Retryable(BatchError),
}

impl From<JobError> for AttemptFailure {
    fn from(error: JobError) -> AttemptFailure {
        let format = |problem: &str| {
            let message = format!(
                "The input file {problem}. Upload a file in JSON Lines format, with one request \
                 per line."
            );
            AttemptFailure::Final(BatchError::new("invalid_file_format", message))
        };
        match error {
            JobError::CompressedInput { .. } => format("is compressed"),
            JobError::ArrayInput { .. } => format("is a JSON array"),
            JobError::Utf16Input { .. } => format("is encoded in UTF-16, not in UTF-8"),
            JobError::TableInput { .. } => format("is a table"),
            JobError::ResumeForeign { .. }
            | JobError::ResumeFingerprint { .. }
            | JobError::ResumeKernels { .. }
            | JobError::ResumeOther { .. } => AttemptFailure::Final(BatchError::new(
                "model_changed",
                "The server was restarted with another model or with other settings than those \
                 that computed the answers of this batch so far. Create a new batch for the \
                 remaining requests.",
            )),
            JobError::Engine(error) => {
                AttemptFailure::Retryable(BatchError::new("engine_error", error.to_string()))
            }
            JobError::Tokenizer(sentence) => {
                AttemptFailure::Retryable(BatchError::new("internal_error", sentence))
            }
            JobError::OutputWrite { source, .. } | JobError::OutputOpen { source, .. } => {
                AttemptFailure::from(source)
            }
            // Other errors concern command lines, or directories that were tampered with.
            _ => AttemptFailure::Retryable(BatchError::new(
                "internal_error",
                "The server could not read or write the files of the batch.",
            )),
        }
    }
}

impl From<io::Error> for AttemptFailure {
    fn from(error: io::Error) -> AttemptFailure {
        let message = format!("The files of the batch could not be read or written: {error}.");
        AttemptFailure::Retryable(BatchError::new("storage_error", message))
    }
}
