//! The shape of a machine: its memories, the worker processes that map them, and the workers'
//! lanes.
//!
//! A topology is part of a plan and the only source of its lanes and workers. The lanes, workers
//! and memories of the two canonical machines have named ids ([`LaneId`], [`WorkerId`],
//! [`MemoryId`]), which policies and profiles use; a topology that extends these machines keeps the
//! ids.

mod ids;
mod kinds;
mod lanes;

use serde::{Deserialize, Serialize};

pub use ids::{LaneId, MemoryId, SLOW_TIERS_MAX, WorkerId};
pub use kinds::{Holds, LaneKind, LaneRule, MemoryKind, RULES, WorkKind, rule};
pub use lanes::{LANES_MAX, LaneSet};

/// A memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Memory {
    /// The control segment, which every worker maps.
    Control,
    /// A NUMA node's memory; node 0 is the one on which the host computes.
    Dram { node: u16 },
    /// A device's memory.
    Vram { device: u16 },
    /// A drive, which lanes read and no worker maps.
    Storage { device: u16 },
}

impl Memory {
    /// Returns the kind of the memory.
    pub const fn kind(self) -> MemoryKind {
        match self {
            Memory::Control => MemoryKind::Control,
            Memory::Dram { .. } => MemoryKind::Dram,
            Memory::Vram { .. } => MemoryKind::Vram,
            Memory::Storage { .. } => MemoryKind::Storage,
        }
    }
}

/// Role of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Computes on the host and loads its weights.
    Cpu,
    /// Computes on a real or emulated device and allocates its memory.
    Gpu,
    /// Copies between host and device.
    Transfer,
    /// Reads a storage, to the host or directly to a device.
    Storage,
}

/// A worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Name in errors and reports.
    pub name: String,
    pub role: Role,
    /// Memories that its lanes may access, in addition to the control segment.
    pub memories: Vec<MemoryId>,
}

/// Hardware that executes a lane's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HardwareEngine {
    /// Threads of the host.
    Cpu,
    /// A device's kernels.
    Gpu { device: u16 },
    /// Copies between the host and a device.
    Link { device: u16 },
    /// Reads of a storage.
    Storage { device: u16 },
}

/// An in-order queue of a worker, with its own timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneSpec {
    /// Name in traces and reports.
    pub name: String,
    pub kind: LaneKind,
    pub worker: WorkerId,
    pub engine: HardwareEngine,
}

/// A segment of a memory: the unit of allocation and mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SegmentId {
    pub memory: MemoryId,
    pub holds: Holds,
}

impl SegmentId {
    /// Segments of the canonical machines.
    pub const HOST_WEIGHTS: SegmentId = SegmentId::new(MemoryId::DRAM, Holds::Weights);
    pub const HOST_KV: SegmentId = SegmentId::new(MemoryId::DRAM, Holds::Kv);
    pub const HOST_ACTIVATIONS: SegmentId = SegmentId::new(MemoryId::DRAM, Holds::Activations);
    pub const DEVICE: SegmentId = SegmentId::new(MemoryId::VRAM, Holds::Arena);
    pub const CONTROL: SegmentId = SegmentId::new(MemoryId::CONTROL, Holds::Table);

    const fn new(memory: MemoryId, holds: Holds) -> SegmentId {
        SegmentId { memory, holds }
    }
}

/// Reason for which a topology is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("its first memory is not the control segment")]
    NoControl,
    #[error("it has {count} lanes; at most {LANES_MAX} can have a timeline")]
    TooManyLanes { count: usize },
    #[error("it has {count} workers; at most {LANES_MAX} fit in the control segment")]
    TooManyWorkers { count: usize },
    #[error("worker {worker} maps memory {memory}, which it does not have")]
    NoMemory { worker: String, memory: u8 },
    #[error("lane {lane} belongs to worker {worker}, which it does not have")]
    NoWorker { lane: String, worker: u8 },
}

/// A machine; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    pub memories: Vec<Memory>,
    pub workers: Vec<Worker>,
    pub lanes: Vec<LaneSpec>,
}

impl Topology {
    /// Returns a machine with only the host.
    pub fn cpu_alone() -> Topology {
        let mut topology =
            Topology { memories: vec![Memory::Control], workers: Vec::new(), lanes: Vec::new() };
        let dram = topology.add_memory(Memory::Dram { node: 0 });
        let cpu = topology.add_worker("cpu worker", Role::Cpu, &[dram]);
        topology.add_lane("cpu.compute", LaneKind::Compute, cpu, HardwareEngine::Cpu);
        topology.add_lane("cpu.append", LaneKind::Append, cpu, HardwareEngine::Cpu);
        topology
    }

    /// Returns a machine with the host, a device, and a worker that copies between them.
    pub fn with_device() -> Topology {
        let mut topology = Topology::cpu_alone();
        let vram = topology.add_memory(Memory::Vram { device: 0 });
        let gpu = topology.add_worker("gpu worker", Role::Gpu, &[vram]);
        let both = [MemoryId::DRAM, vram];
        let transfer = topology.add_worker("transfer worker", Role::Transfer, &both);
        let (on, link) = (HardwareEngine::Gpu { device: 0 }, HardwareEngine::Link { device: 0 });
        topology.add_lane("gpu.compute", LaneKind::Compute, gpu, on);
        topology.add_lane("gpu.decompress", LaneKind::Decompress, gpu, on);
        topology.add_lane("h2d.weights", LaneKind::UploadWeights, transfer, link);
        topology.add_lane("h2d.activations", LaneKind::UploadValues, transfer, link);
        topology.add_lane("d2h", LaneKind::Download, transfer, link);
        topology
    }

    /// Adds a host memory slower than the one on which it computes (another NUMA node, or CXL). It
    /// stores only weights: the CPU multiplies them in place, and they are copied to a device from
    /// there.
    pub fn add_slow_tier(&mut self) -> MemoryId {
        let is_dram = |memory: &&Memory| memory.kind() == MemoryKind::Dram;
        let node = self.memories.iter().filter(is_dram).count() as u16;
        let memory = self.add_memory(Memory::Dram { node });
        let uses = |worker: &&mut Worker| matches!(worker.role, Role::Cpu | Role::Transfer);
        self.workers.iter_mut().filter(uses).for_each(|worker| worker.memories.push(memory));
        memory
    }

    /// Returns an additional host memory by its number, or `None` if there are fewer.
    pub fn slow_tier(&self, number: u8) -> Option<MemoryId> {
        let wanted = Memory::Dram { node: u16::from(number) + 1 };
        let place = self.memories.iter().position(|memory| *memory == wanted)?;
        Some(MemoryId(place as u8))
    }

    /// Returns the number of an additional host memory; `None` for any other memory.
    pub fn slow_tier_index(&self, id: MemoryId) -> Option<usize> {
        match self.memories.get(id.index())? {
            Memory::Dram { node } => usize::from(*node).checked_sub(1),
            _ => None,
        }
    }

    /// Adds a storage with a worker that reads it to the host, on its own lane.
    pub fn add_storage(&mut self) -> MemoryId {
        self.add_storage_that_reads_to(&[self.host()])
    }

    /// Adds a storage with a worker that reads it to the host, and to the device if there is one.
    pub fn add_direct_storage(&mut self) -> MemoryId {
        let memories: Vec<MemoryId> = [self.host()].into_iter().chain(self.device()).collect();
        self.add_storage_that_reads_to(&memories)
    }

    fn add_storage_that_reads_to(&mut self, memories: &[MemoryId]) -> MemoryId {
        let is_storage = |memory: &&Memory| memory.kind() == MemoryKind::Storage;
        let device = self.memories.iter().filter(is_storage).count() as u16;
        let storage = self.add_memory(Memory::Storage { device });
        let worker = format!("storage worker {device}");
        let memories: Vec<MemoryId> = memories.iter().copied().chain([storage]).collect();
        let worker = self.add_worker(&worker, Role::Storage, &memories);
        let name = format!("nvme{device}.read");
        self.add_lane(&name, LaneKind::Read, worker, HardwareEngine::Storage { device });
        storage
    }

    fn add_memory(&mut self, memory: Memory) -> MemoryId {
        self.memories.push(memory);
        MemoryId(self.memories.len() as u8 - 1)
    }

    fn add_worker(&mut self, name: &str, role: Role, memories: &[MemoryId]) -> WorkerId {
        let (name, memories) = (name.to_owned(), memories.to_vec());
        self.workers.push(Worker { name, role, memories });
        WorkerId(self.workers.len() as u8 - 1)
    }

    fn add_lane(&mut self, name: &str, kind: LaneKind, worker: WorkerId, engine: HardwareEngine) {
        self.lanes.push(LaneSpec { name: name.to_owned(), kind, worker, engine });
    }

    /// Checks that all ids are valid.
    ///
    /// # Errors
    /// The first invalid id.
    pub fn check(&self) -> Result<(), TopologyError> {
        if self.memories.first() != Some(&Memory::Control) {
            return Err(TopologyError::NoControl);
        }
        if self.lanes.len() > LANES_MAX {
            return Err(TopologyError::TooManyLanes { count: self.lanes.len() });
        }
        if self.workers.len() > LANES_MAX {
            return Err(TopologyError::TooManyWorkers { count: self.workers.len() });
        }
        for worker in &self.workers {
            let missing = worker.memories.iter().find(|id| id.index() >= self.memories.len());
            if let Some(MemoryId(memory)) = missing {
                let (worker, memory) = (worker.name.clone(), *memory);
                return Err(TopologyError::NoMemory { worker, memory });
            }
        }
        match self.lanes.iter().find(|lane| lane.worker.index() >= self.workers.len()) {
            Some(lane) => {
                let (lane, WorkerId(worker)) = (lane.name.clone(), lane.worker);
                Err(TopologyError::NoWorker { lane, worker })
            }
            None => Ok(()),
        }
    }

    /// Returns a lane by id.
    ///
    /// # Panics
    /// For an id of another topology.
    pub fn lane(&self, id: LaneId) -> &LaneSpec {
        &self.lanes[id.index()]
    }

    /// Returns a lane's name, or "unknown" for a lane of another topology.
    pub fn lane_name(&self, id: LaneId) -> &str {
        self.lanes.get(id.index()).map_or("unknown", |lane| &lane.name)
    }

    /// Returns a worker by id.
    ///
    /// # Panics
    /// For an id of another topology.
    pub fn worker(&self, id: WorkerId) -> &Worker {
        &self.workers[id.index()]
    }

    /// Returns the kind of a memory; `None` if the topology does not have it.
    pub fn memory_kind(&self, id: MemoryId) -> Option<MemoryKind> {
        self.memories.get(id.index()).map(|memory| memory.kind())
    }

    /// Returns true if `id` is a device's memory.
    pub fn is_vram(&self, id: MemoryId) -> bool {
        self.memory_kind(id) == Some(MemoryKind::Vram)
    }

    /// Returns true if `id` is a storage.
    pub fn is_storage(&self, id: MemoryId) -> bool {
        self.memory_kind(id) == Some(MemoryKind::Storage)
    }

    /// Returns all storages, each with the lane that reads it, in the order of their numbers.
    pub fn storages(&self) -> Vec<(MemoryId, LaneId)> {
        let memories = (0..self.memories.len() as u8).map(MemoryId);
        let reads = |storage| {
            self.find_lane(|lane| lane.kind == LaneKind::Read && self.maps(lane.worker, storage))
        };
        let storages = memories.filter(|id| self.is_storage(*id));
        storages.filter_map(|storage| reads(storage).map(|lane| (storage, lane))).collect()
    }

    /// Returns true if the storages' lanes may read directly to the device.
    pub fn reads_directly(&self) -> bool {
        let storages = self.storages();
        let maps =
            |memory| storages.iter().all(|(_, lane)| self.maps(self.lane(*lane).worker, memory));
        !storages.is_empty() && self.device().is_some_and(maps)
    }

    /// Returns the ids of all lanes, in the order of their timelines.
    pub fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.lanes.len() as u8).map(LaneId)
    }

    /// Returns the ids of all workers.
    pub fn worker_ids(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.workers.len() as u8).map(WorkerId)
    }

    /// Returns the ids of the workers with a role.
    pub fn workers_of(&self, role: Role) -> impl Iterator<Item = WorkerId> + '_ {
        self.worker_ids().filter(move |id| self.worker(*id).role == role)
    }

    /// Returns the lanes of a worker.
    pub fn lanes_of(&self, worker: WorkerId) -> Vec<LaneId> {
        self.lane_ids().filter(|id| self.lane(*id).worker == worker).collect()
    }

    /// Returns the lanes that satisfy `wanted`.
    pub fn lane_set(&self, wanted: impl Fn(&LaneSpec) -> bool) -> LaneSet {
        self.lane_ids().filter(|id| wanted(self.lane(*id))).collect()
    }

    /// Returns the lanes that compute on a device.
    pub fn device_computes(&self) -> LaneSet {
        let on_device = |lane: &LaneSpec| matches!(lane.engine, HardwareEngine::Gpu { .. });
        self.lane_set(|lane| lane.kind == LaneKind::Compute && on_device(lane))
    }

    /// Returns the lanes that slow others down.
    pub fn heavy_lanes(&self) -> LaneSet {
        self.lane_set(|lane| lane.kind.is_heavy())
    }

    /// Returns the first lane that satisfies `wanted`.
    pub fn find_lane(&self, wanted: impl Fn(&LaneSpec) -> bool) -> Option<LaneId> {
        self.lane_ids().find(|id| wanted(self.lane(*id)))
    }

    /// Returns the host's memory, the first of its kind.
    pub fn host(&self) -> MemoryId {
        self.memory_of(MemoryKind::Dram).unwrap_or(MemoryId::DRAM)
    }

    /// Returns the memory of the device, if there is one: the first of its kind.
    pub fn device(&self) -> Option<MemoryId> {
        self.memory_of(MemoryKind::Vram)
    }

    fn memory_of(&self, kind: MemoryKind) -> Option<MemoryId> {
        let place = self.memories.iter().position(|memory| memory.kind() == kind)?;
        Some(MemoryId(place as u8))
    }

    /// Returns the segments of a memory.
    pub fn segments_of(&self, memory: MemoryId) -> Vec<SegmentId> {
        let kind = self.memory_kind(memory);
        let holds = kind.map_or(&[][..], MemoryKind::segments);
        holds.iter().map(|holds| SegmentId { memory, holds: *holds }).collect()
    }

    /// Returns all segments with their own bytes: those of all memories except the control segment.
    pub fn segments(&self) -> Vec<SegmentId> {
        let ids = (0..self.memories.len() as u8).map(MemoryId);
        ids.filter(|id| *id != MemoryId::CONTROL).flat_map(|id| self.segments_of(id)).collect()
    }

    /// Returns true if a worker's lanes may access a memory.
    pub fn maps(&self, worker: WorkerId, memory: MemoryId) -> bool {
        memory == MemoryId::CONTROL || self.worker(worker).memories.contains(&memory)
    }
}

#[cfg(test)]
mod tests;
