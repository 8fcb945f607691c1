//! Loading of a worker's weights, between mapping memory and building lanes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kernels::Variant;
use program::topology::Role;
use protocol::messages::{FromWorker, ToWorker, WeightsOrigin, WorkerSetup};
use shm::sync::Ordering;

use crate::device::Device;
use crate::error::WorkerError;
use crate::load::{
    EmulatedTarget, LoadError, OpenWeights, ResidentTarget, load, load_resident,
    resident_model_bytes,
};
use crate::memory::Memories;
use crate::messages::{receive, send, unexpected};
use crate::process::WorkerRuntime;
use crate::storage::StagedBlobs;

impl WorkerRuntime<'_> {
    /// Loads the weights of this worker and returns the staging that it reads from afterwards, if
    /// any.
    pub(super) fn load(
        &self,
        setup: &WorkerSetup,
        memories: &Arc<Memories>,
        cuda: Option<&Device>,
        variant: Variant,
        open: &OpenWeights,
    ) -> Result<Option<StagedBlobs>, WorkerError> {
        let mut store = None;
        match self.role {
            Role::Cpu | Role::Storage if setup.durations.is_some() => {}
            Role::Cpu => self.load_weights(setup, memories, variant, open)?,
            Role::Storage => {
                let at = setup.staged.as_ref().ok_or_else(|| WorkerError::Staging {
                    reason: "A storage worker was started without a staging".to_owned(),
                })?;
                store = Some(StagedBlobs::open(&setup.plan, at)?);
            }
            Role::Gpu if !setup.cuda.is_some_and(|cuda| cuda.copies_in_gpu_worker) => {
                return Ok(None);
            }
            Role::Gpu | Role::Transfer => match self.receive_load(setup)? {
                (ToWorker::Load, _) if setup.durations.is_some() => {}
                (ToWorker::Load, _) => {
                    self.load_resident(setup, memories, cuda, variant, open)?;
                }
                (other, _) => return Err(unexpected(&other, "the command to load")),
            },
        }
        send(self.channel, &FromWorker::Loaded, &[])?;
        Ok(store)
    }

    /// Waits for the command to load. The bytes to read are reported before, so that progress does
    /// not return to a smaller fraction once they are read.
    fn receive_load(&self, setup: &WorkerSetup) -> Result<(ToWorker, Vec<OwnedFd>), WorkerError> {
        if setup.durations.is_none() {
            self.report_load(0, resident_model_bytes(&setup.plan));
        }
        receive(self.channel)
    }

    fn report_load(&self, done_bytes: u64, total_bytes: u64) {
        let words = self.control.worker(self.id.index());
        words.load_total_bytes.store(total_bytes, Ordering::Relaxed);
        words.load_done_bytes.store(done_bytes, Ordering::Relaxed);
    }

    /// Loads the weights that stay on the device.
    fn load_resident(
        &self,
        setup: &WorkerSetup,
        memories: &Arc<Memories>,
        cuda: Option<&Device>,
        variant: Variant,
        open: &OpenWeights,
    ) -> Result<(), WorkerError> {
        if setup.plan.resident.is_empty() {
            return Ok(());
        }
        let source = open(&setup.weights, &setup.plan.config).map_err(LoadError::from)?;
        // SAFETY: needed to write the weights. Lanes run only after this worker has reported that
        // they are in place, and no other worker writes them.
        let emulated = unsafe { EmulatedTarget::new(memories) };
        let target = cuda.map_or(&emulated as &dyn ResidentTarget, |device| device);
        let progress = |done, total| self.report_load(done, total);
        load_resident(&setup.plan, memories, target, source.as_ref(), variant, &progress)?;
        Ok(())
    }

    /// Reads the model's weights to their places in `memories`.
    fn load_weights(
        &self,
        setup: &WorkerSetup,
        memories: &Arc<Memories>,
        variant: Variant,
        open: &OpenWeights,
    ) -> Result<(), WorkerError> {
        let source = open(&setup.weights, &setup.plan.config).map_err(LoadError::from)?;
        let progress = |done, total| self.report_load(done, total);
        let threads = match setup.weights {
            // These weights are generated, and no other worker needs a core until they are.
            WeightsOrigin::Dummy { .. } | WeightsOrigin::DummyRandomRouting { .. } => {
                std::thread::available_parallelism().map_or(1, usize::from)
            }
            _ => 1,
        };
        let threads = threads.max(setup.threads.into());
        load(&setup.plan, memories, source.as_ref(), variant, threads, &progress)?;
        Ok(())
    }
}
