//! Interface to the component that runs the hand-made plans: real worker processes in the
//! coordinator, threads in tests.

use program::plan::Plan;
use program::topology::LaneId;
use protocol::group::PlacedRequest;
use shm::TraceRecord;

use crate::request::ComputeThreads;

/// Reason for which a plan could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("The profiler was interrupted; an earlier profile is still valid.")]
    Interrupted,
    #[error("A plan of the profiler could not be run: {0}")]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// Starts workers for plans.
pub trait Runner {
    /// Starts the workers of `plan` with dummy weights and waits until they are ready. The plan is
    /// free of deadlocks and races; its programs are not those of a model.
    ///
    /// # Errors
    /// A failure that prevented a worker from getting ready.
    fn start(
        &mut self,
        plan: Plan,
        threads: ComputeThreads,
    ) -> Result<Box<dyn RunnerSession>, RunnerError>;
}

/// Workers that are ready; they end when this is dropped.
pub trait RunnerSession {
    /// Fills the step table with `group` exactly as it is placed, runs it to its end, and returns
    /// the records of all lanes, each lane in order. No record may be lost.
    ///
    /// # Errors
    /// A worker that failed, or an interrupt.
    fn run(&mut self, group: &[PlacedRequest]) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError>;
}
