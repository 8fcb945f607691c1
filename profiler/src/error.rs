//! Errors of profiling.

use program::validate::ValidateError;

use crate::runner::RunnerError;

/// Reason for which there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error("A plan of the profiler is not safe to run; this is a defect, please report it: {0}")]
    Plan(#[from] ValidateError),
    #[error("The workload has no sequences or no positions; there is nothing to profile.")]
    Empty,
}
