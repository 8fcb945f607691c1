//! Roles of the workers in a launch.

use program::ir::Instruction;
use program::plan::Plan;
use program::topology::{MemoryId, Role, Topology, WorkerId};
use protocol::messages::CudaConfig;

/// Workers of a launch, by their roles while it starts.
#[derive(Debug)]
pub(super) struct WorkerRoles {
    pub(super) started: Vec<WorkerId>,
    pub(super) gpu: Option<WorkerId>,
    pub(super) transfer: Option<WorkerId>,
    /// Worker that copies between host and device.
    pub(super) copier: Option<WorkerId>,
    /// Workers that load weights by themselves.
    pub(super) loaders: Vec<WorkerId>,
    /// Workers that read storages directly to the device.
    pub(super) readers: Vec<WorkerId>,
}

impl WorkerRoles {
    pub(super) fn from_topology(topology: &Topology, cuda: Option<CudaConfig>) -> WorkerRoles {
        let gpu = topology.workers_of(Role::Gpu).next();
        let transfer = topology.workers_of(Role::Transfer).next();
        let copier = match cuda {
            Some(CudaConfig { copies_in_gpu_worker: true, .. }) => gpu,
            _ => transfer,
        };
        let started =
            topology.worker_ids().filter(|id| Some(*id) != transfer || copier == transfer);
        let loads = |id: &WorkerId| match topology.worker(*id).role {
            Role::Cpu | Role::Storage => true,
            Role::Gpu | Role::Transfer => false,
        };
        let loaders = topology.worker_ids().filter(loads).collect();
        let reads = |id: &WorkerId| topology.device().is_some_and(|to| topology.maps(*id, to));
        let readers = topology.workers_of(Role::Storage).filter(reads).collect();
        WorkerRoles { started: started.collect(), gpu, transfer, copier, loaders, readers }
    }

    /// Returns true if copies between host and device access a memory.
    pub(super) fn is_transfer_memory(&self, topology: &Topology, memory: MemoryId) -> bool {
        self.transfer.is_some_and(|transfer| topology.maps(transfer, memory))
    }
}

/// Returns the worker whose lane samples.
pub(super) fn sampler(plan: &Plan) -> Option<WorkerId> {
    let mut lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let list = lists.find(|list| list.instructions.iter().any(Instruction::is_sample))?;
    plan.topology.worker_ids().find(|id| plan.topology.lanes_of(*id).contains(&list.lane))
}
