//! Handshake with started workers: exchange of device memory and loading of weights.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use program::plan::Plan;
use program::topology::WorkerId;
use protocol::messages::{CudaConfig, FromWorker, ToWorker};

use super::launched_workers::{LaunchError, LaunchedWorkers, LoadProgress, POLL_INTERVAL, send};
use super::supervisor::{SupervisedWorker, Supervisor, WorkerFailure};
use super::worker_roles::WorkerRoles;

/// Handshake with the workers: waits for one of them while checking all.
pub(super) struct WorkerStartup<'a, 'p> {
    pub(super) plan: &'a Plan,
    pub(super) launched: &'a mut LaunchedWorkers,
    pub(super) progress: &'a mut LoadProgress<'p>,
    pub(super) sample: &'a mut dyn FnMut(&Supervisor),
    /// True if messages about operations that take long are printed.
    pub(super) is_verbose: bool,
}

impl WorkerStartup<'_, '_> {
    /// Passes device memory to the workers that copy or read to it, and waits until weights are
    /// loaded.
    pub(super) fn load(
        &mut self,
        roles: &WorkerRoles,
        cuda: Option<CudaConfig>,
    ) -> Result<(), LaunchError> {
        if let (Some(gpu), Some(copier)) = (roles.gpu, roles.copier) {
            if cuda.is_some() {
                self.share_device(gpu, copier, &roles.readers)?;
            } else {
                let ((memory, size_bytes), descriptors) =
                    self.receive(gpu, |message| match message {
                        FromWorker::Exported { memory, size_bytes } => Some((memory, size_bytes)),
                        _ => None,
                    })?;
                for id in [copier].iter().chain(&roles.readers) {
                    self.send(*id, &ToWorker::Attach { memory, size_bytes }, &descriptors)?;
                }
            }
        }
        let loaded = |message| matches!(message, FromWorker::Loaded).then_some(());
        for loader in &roles.loaders {
            self.receive(*loader, loaded)?;
        }
        if let Some(copier) = roles.copier {
            self.send(copier, &ToWorker::Load, &[])?;
            self.receive(copier, loaded)?;
        }
        Ok(())
    }

    fn worker(&mut self, id: WorkerId) -> Result<&mut SupervisedWorker, LaunchError> {
        let workers = &mut self.launched.supervisor.workers;
        let worker = workers.iter_mut().find(|worker| worker.id == id);
        worker.ok_or(LaunchError::Worker(WorkerFailure::Unknown))
    }

    fn send(
        &mut self,
        id: WorkerId,
        message: &ToWorker,
        fds: &[OwnedFd],
    ) -> Result<(), LaunchError> {
        let descriptors: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        send(self.worker(id)?, message, &descriptors)
    }

    /// Passes the arena of a CUDA device to the worker that copies, if that is another worker, and
    /// to the workers that read storages to the device.
    fn share_device(
        &mut self,
        gpu: WorkerId,
        copier: WorkerId,
        readers: &[WorkerId],
    ) -> Result<(), LaunchError> {
        if copier == gpu {
            return Ok(());
        }
        let ((handle, size_bytes), _) = self.receive(gpu, |message| match message {
            FromWorker::ExportedDevice { handle, size_bytes } => Some((handle, size_bytes)),
            _ => None,
        })?;
        let handle = handle.map_err(LaunchError::DeviceMemoryNotShared)?;
        for id in [copier].iter().chain(readers) {
            let handle = handle.clone();
            self.send(*id, &ToWorker::AttachDevice { handle, size_bytes }, &[])?;
            let (refusal, _) = self.receive(*id, |message| match message {
                FromWorker::AttachedDevice { refusal } => Some(refusal),
                _ => None,
            })?;
            if let Some(reason) = refusal {
                return Err(LaunchError::DeviceMemoryNotShared(reason));
            }
        }
        Ok(())
    }

    pub(super) fn receive<T>(
        &mut self,
        id: WorkerId,
        wanted: impl Fn(FromWorker) -> Option<T>,
    ) -> Result<(T, Vec<OwnedFd>), LaunchError> {
        loop {
            match self.worker(id)?.receive(POLL_INTERVAL) {
                Some((FromWorker::CompilingKernels, _)) => {
                    if self.is_verbose {
                        eprintln!("compiling kernels for this GPU, about half a minute, once");
                    }
                    continue;
                }
                Some((message, descriptors)) => match wanted(message) {
                    Some(value) => return Ok((value, descriptors)),
                    None => continue,
                },
                None => {}
            }
            self.launched.supervisor.check(self.plan)?;
            (self.sample)(&self.launched.supervisor);
            let ids = self.plan.topology.worker_ids();
            let loads =
                ids.map(|id| self.launched.control.worker(id.index()).load_progress_bytes());
            let (done, total) = loads.fold((0, 0), |sum, load| (sum.0 + load.0, sum.1 + load.1));
            if !(self.progress)(done, total) {
                return Err(LaunchError::Interrupted);
            }
        }
    }
}
