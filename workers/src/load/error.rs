//! What can go wrong while weights are loaded.

use kernels::grouped::RepackError;
use model::source::SourceError;

/// Why weights could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that lacks a tensor, ends early, or cannot be read.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// A tensor of another shape than the configuration's.
    #[error(
        "The tensor {tensor} has shape [{}, {}] where the model's configuration needs [{}, {}]; \
         the files belong to another model.", .found.0, .found.1, .expected.0, .expected.1
    )]
    Shape { tensor: String, found: (usize, usize), expected: (usize, usize) },
    /// A weight from which nothing can be computed.
    #[error(
        "The tensor {tensor} holds a value that is infinite or no number, in row {row}, column \
         {column}, so no answer could be trusted. The files are damaged, or were converted to a \
         type that is too narrow: fetch or convert them again."
    )]
    NotFinite { tensor: String, row: usize, column: usize },
    /// A quantised block of a file that has no place in the form it is to be kept in.
    #[error("{tensor}: {source}; --quantized expand loads the file all the same.")]
    Repack {
        tensor: String,
        #[source]
        source: RepackError,
    },
    /// The system refused a thread.
    #[error("The system refused to start a loading thread: {0}.")]
    Thread(#[source] std::io::Error),
}
