//! Errors of loading weights.

use cuda::CudaError;
use kernels::quant::RepackError;
use model::source::SourceError;

/// Reason why weights could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that lacks a tensor, ends early, or cannot be read.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// A tensor whose shape differs from the configuration's.
    #[error(
        "The tensor {tensor} has shape [{}, {}] but the model's configuration needs [{}, {}]; the \
         files belong to another model.", .found.0, .found.1, .expected.0, .expected.1
    )]
    Shape { tensor: String, found: (usize, usize), expected: (usize, usize) },
    /// A weight that is infinite or NaN.
    #[error(
        "The tensor {tensor} contains an infinity or NaN in row {row}, column {column}, so no \
         answer could be trusted. The files are damaged, or were converted to a type that is too \
         narrow: download or convert them again."
    )]
    NotFinite { tensor: String, row: usize, column: usize },
    /// A quantised block of a file that cannot be represented in the format in which it is stored.
    #[error("{tensor}: {source}; use --quantized expand to load the file anyway.")]
    Repack {
        tensor: String,
        #[source]
        source: RepackError,
    },
    /// The CUDA device failed.
    #[error("{0}")]
    Device(#[from] CudaError),
    /// The system could not start a thread.
    #[error("The system refused to start a loading thread: {0}.")]
    Thread(#[source] std::io::Error),
}
