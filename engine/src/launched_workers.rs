//! Launched workers: their state, messages to them, and the reasons why a launch fails.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use program::plan::Plan;
use program::topology::{LaneId, WorkerId};
use protocol::messages::ToWorker;
use shm::{
    ChannelError, Control, ControlError, SegmentError, TraceError, TraceReader, TraceSegment,
};

use super::supervisor::{SupervisedWorker, Supervisor, WorkerFailure};

/// Interval between checks of the workers.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reason why the workers did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("shared memory: {0}")]
    Segment(#[from] SegmentError),
    #[error("shared memory: {0}")]
    Control(#[from] ControlError),
    #[error("shared memory: {0}")]
    Trace(#[from] TraceError),
    #[error("the {worker} could not be started: {source}")]
    Spawn { worker: String, source: std::io::Error },
    #[error("the {worker} could not be reached: {source}")]
    Channel { worker: String, source: ChannelError },
    #[error(transparent)]
    PromptCacheConfig(#[from] prompt_cache::PromptCacheOpenError),
    #[error(transparent)]
    Worker(#[from] WorkerFailure),
    /// No second process can use the device. The workers are then started in another way.
    #[error("{0}")]
    DeviceMemoryNotShared(String),
    /// No second process can use the device, although storages are to be read directly to it.
    #[error("{0}, so drives cannot be read straight to the device; run with --nvme-direct off")]
    DirectReadsUnsupported(String),
    #[error("interrupted")]
    Interrupted,
    /// The serving thread panicked; its message was printed already.
    #[error("the serving thread panicked")]
    Panicked,
}

/// Running workers that have loaded the model.
#[derive(Debug)]
pub(super) struct LaunchedWorkers {
    pub(super) control: Control,
    pub(super) trace: TraceSegment,
    pub(super) supervisor: Supervisor,
    pub(super) kernel_variants: BTreeMap<WorkerId, String>,
    /// Number and description of the CUDA device.
    pub(super) device: Option<String>,
}

/// Receives the bytes loaded so far and the bytes to load. Returns false to interrupt the launch.
pub type LoadProgress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

impl LaunchedWorkers {
    /// Returns the kernel variant of each worker, by the worker's name.
    pub(super) fn kernel_variants(&self, plan: &Plan) -> BTreeMap<String, String> {
        let named = self.kernel_variants.iter().map(|(id, variant)| {
            let name = plan.topology.worker(*id).name.clone();
            (name, variant.clone())
        });
        named.collect()
    }

    /// Lets the workers exit, by force if they are in a group.
    pub(super) fn shut_down(&mut self, is_busy: bool) {
        if !is_busy {
            self.control.release(&[], 0);
        }
        self.supervisor.shut_down(is_busy);
    }

    /// Returns a trace reader for each lane that has work.
    ///
    /// # Errors
    /// A ring that already has a reader.
    pub(super) fn trace_readers(
        &self,
        plan: &Plan,
    ) -> Result<Vec<(LaneId, TraceReader)>, LaunchError> {
        let mut readers = Vec::new();
        for lane in plan.lanes() {
            readers.push((lane, self.trace.reader(lane.index())?));
        }
        Ok(readers)
    }
}

/// Sends a message to a worker.
///
/// # Errors
/// The worker's channel is closed.
pub(super) fn send(
    worker: &SupervisedWorker,
    message: &ToWorker,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), LaunchError> {
    let failed = |source| LaunchError::Channel { worker: worker.name.clone(), source };
    let bytes =
        postcard::to_stdvec(message).map_err(|_| LaunchError::Worker(WorkerFailure::Unknown))?;
    worker.channel.send_large(&bytes, descriptors).map_err(failed)
}
