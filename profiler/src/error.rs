//! Why there is no profile.

use program::validate::ValidateError;

use crate::runner::RunnerError;

/// See the module header.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error("A plan of the profiler is not safe to run; this is a defect, please report it: {0}")]
    Plan(#[from] ValidateError),
    #[error("The workload has no sequences or no positions; there is nothing to profile.")]
    Empty,
}
