//! The shape of a machine: its memories, the worker processes that map them, and the workers'
//! lanes.
//!
//! A topology is part of a plan. Whoever wants to know which lanes or workers there are asks it;
//! nothing else lists them. The two canonical machines have ids with names ([`LaneId`],
//! [`WorkerId`], [`MemoryId`]), by which policies and profiles speak of them; a topology that
//! extends them keeps these ids.

mod ids;
mod kinds;
mod lanes;

use serde::{Deserialize, Serialize};

pub use ids::{FAR_MAX, LaneId, MemoryId, WorkerId};
pub use kinds::{Holds, LaneKind, MemoryKind, RULES, Rule, Work, rule};
pub use lanes::{LANES_MAX, LaneSet};

/// A memory with a name of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Memory {
    /// The control segment, which every worker maps.
    Control,
    /// A NUMA node's memory; node 0 is the one that the host works in.
    Dram { node: u16 },
    /// A device's memory.
    Vram { device: u16 },
    /// A disk, which lanes read and nobody maps.
    Storage { device: u16 },
}

impl Memory {
    /// Its kind.
    pub const fn kind(self) -> MemoryKind {
        match self {
            Memory::Control => MemoryKind::Control,
            Memory::Dram { .. } => MemoryKind::Dram,
            Memory::Vram { .. } => MemoryKind::Vram,
            Memory::Storage { .. } => MemoryKind::Storage,
        }
    }
}

/// What a worker process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Computes on the host, whose weights it loads.
    Cpu,
    /// Computes on a device, or an emulated one, whose memory it makes.
    Gpu,
    /// Copies between host and device.
    Transfer,
    /// Reads a storage, to the host or straight to a device.
    Storage,
}

/// A worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// In errors and reports.
    pub name: String,
    pub role: Role,
    /// The memories that its lanes may touch, beside the control segment.
    pub memories: Vec<MemoryId>,
}

/// What carries out a lane's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Engine {
    /// Threads of the host.
    Cpu,
    /// A device's kernels.
    Gpu { device: u16 },
    /// Copies between the host and a device.
    Link { device: u16 },
    /// Reads of a storage.
    Storage { device: u16 },
}

/// An in-order queue of a worker, with a timeline of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// In traces and reports.
    pub name: String,
    pub kind: LaneKind,
    pub worker: WorkerId,
    pub engine: Engine,
}

/// A segment of a memory: what is allocated and mapped as one.
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

/// Why a topology cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    #[error("its first memory is not the control segment")]
    NoControl,
    #[error("it has {count} lanes; at most {LANES_MAX} have a timeline")]
    TooManyLanes { count: usize },
    #[error("it has {count} workers; at most {LANES_MAX} have words in the control segment")]
    TooManyWorkers { count: usize },
    #[error("worker {worker} maps memory {memory}, which it does not have")]
    NoMemory { worker: String, memory: u8 },
    #[error("lane {lane} belongs to worker {worker}, which it does not have")]
    NoWorker { lane: String, worker: u8 },
}

/// A machine; see the module header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    pub memories: Vec<Memory>,
    pub workers: Vec<Worker>,
    pub lanes: Vec<Lane>,
}

impl Topology {
    /// The host alone.
    pub fn cpu_alone() -> Topology {
        let mut topology =
            Topology { memories: vec![Memory::Control], workers: Vec::new(), lanes: Vec::new() };
        let dram = topology.add_memory(Memory::Dram { node: 0 });
        let cpu = topology.add_worker("cpu worker", Role::Cpu, &[dram]);
        topology.add_lane("cpu.compute", LaneKind::Compute, cpu, Engine::Cpu);
        topology.add_lane("cpu.append", LaneKind::Append, cpu, Engine::Cpu);
        topology
    }

    /// The host, a device, and a worker that copies between them.
    pub fn with_device() -> Topology {
        let mut topology = Topology::cpu_alone();
        let vram = topology.add_memory(Memory::Vram { device: 0 });
        let gpu = topology.add_worker("gpu worker", Role::Gpu, &[vram]);
        let both = [MemoryId::DRAM, vram];
        let transfer = topology.add_worker("transfer worker", Role::Transfer, &both);
        let (on, link) = (Engine::Gpu { device: 0 }, Engine::Link { device: 0 });
        topology.add_lane("gpu.compute", LaneKind::Compute, gpu, on);
        topology.add_lane("gpu.decompress", LaneKind::Decompress, gpu, on);
        topology.add_lane("h2d.weights", LaneKind::UploadWeights, transfer, link);
        topology.add_lane("h2d.activations", LaneKind::UploadValues, transfer, link);
        topology.add_lane("d2h", LaneKind::Download, transfer, link);
        topology
    }

    /// Adds a further memory of the host, slower than the one that it works in (a far NUMA node, or
    /// CXL), which holds weights alone: the CPU multiplies from there, and they are copied to a
    /// device from there.
    pub fn add_far(&mut self) -> MemoryId {
        let is_dram = |memory: &&Memory| memory.kind() == MemoryKind::Dram;
        let node = self.memories.iter().filter(is_dram).count() as u16;
        let memory = self.add_memory(Memory::Dram { node });
        let uses = |worker: &&mut Worker| matches!(worker.role, Role::Cpu | Role::Transfer);
        self.workers.iter_mut().filter(uses).for_each(|worker| worker.memories.push(memory));
        memory
    }

    /// A further memory of the host by its number; `None` where there are fewer.
    pub fn far(&self, number: u8) -> Option<MemoryId> {
        let wanted = Memory::Dram { node: u16::from(number) + 1 };
        let place = self.memories.iter().position(|memory| *memory == wanted)?;
        Some(MemoryId(place as u8))
    }

    /// The number of a further memory of the host; `None` of any other memory.
    pub fn far_number(&self, id: MemoryId) -> Option<usize> {
        match self.memories.get(id.index())? {
            Memory::Dram { node } => usize::from(*node).checked_sub(1),
            _ => None,
        }
    }

    /// Adds a storage with a worker that reads it to the host, on a lane of its own.
    pub fn add_storage(&mut self) -> MemoryId {
        self.add_storage_that_reads_to(&[self.host()])
    }

    /// The same with a worker that reads it to the device too, if there is one.
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
        self.add_lane(&name, LaneKind::Read, worker, Engine::Storage { device });
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

    fn add_lane(&mut self, name: &str, kind: LaneKind, worker: WorkerId, engine: Engine) {
        self.lanes.push(Lane { name: name.to_owned(), kind, worker, engine });
    }

    /// Checks that ids name what is there.
    ///
    /// # Errors
    /// The first that does not.
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

    /// A lane by id.
    ///
    /// # Panics
    /// An id of another topology.
    pub fn lane(&self, id: LaneId) -> &Lane {
        &self.lanes[id.index()]
    }

    /// A lane's name, also of one that the topology does not have.
    pub fn lane_name(&self, id: LaneId) -> &str {
        self.lanes.get(id.index()).map_or("unknown", |lane| &lane.name)
    }

    /// A worker by id.
    ///
    /// # Panics
    /// An id of another topology.
    pub fn worker(&self, id: WorkerId) -> &Worker {
        &self.workers[id.index()]
    }

    /// Kind of a memory; `None` of one that the topology does not have.
    pub fn memory_kind(&self, id: MemoryId) -> Option<MemoryKind> {
        self.memories.get(id.index()).map(|memory| memory.kind())
    }

    /// Whether `id` is a device's memory.
    pub fn is_vram(&self, id: MemoryId) -> bool {
        self.memory_kind(id) == Some(MemoryKind::Vram)
    }

    /// Whether `id` is a storage.
    pub fn is_storage(&self, id: MemoryId) -> bool {
        self.memory_kind(id) == Some(MemoryKind::Storage)
    }

    /// All storages, each with the lane that reads it, in the order of their numbers.
    pub fn storages(&self) -> Vec<(MemoryId, LaneId)> {
        let memories = (0..self.memories.len() as u8).map(MemoryId);
        let reads = |storage| {
            self.find_lane(|lane| lane.kind == LaneKind::Read && self.maps(lane.worker, storage))
        };
        let storages = memories.filter(|id| self.is_storage(*id));
        storages.filter_map(|storage| reads(storage).map(|lane| (storage, lane))).collect()
    }

    /// Whether the storages' lanes may read straight to the device.
    pub fn reads_directly(&self) -> bool {
        let storages = self.storages();
        let maps =
            |memory| storages.iter().all(|(_, lane)| self.maps(self.lane(*lane).worker, memory));
        !storages.is_empty() && self.device().is_some_and(maps)
    }

    /// Ids of all lanes, in the order of their timelines.
    pub fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.lanes.len() as u8).map(LaneId)
    }

    /// Ids of all workers.
    pub fn worker_ids(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.workers.len() as u8).map(WorkerId)
    }

    /// Ids of the workers of a role.
    pub fn workers_of(&self, role: Role) -> impl Iterator<Item = WorkerId> + '_ {
        self.worker_ids().filter(move |id| self.worker(*id).role == role)
    }

    /// Lanes of a worker.
    pub fn lanes_of(&self, worker: WorkerId) -> Vec<LaneId> {
        self.lane_ids().filter(|id| self.lane(*id).worker == worker).collect()
    }

    /// The lanes for which `wanted` holds.
    pub fn lane_set(&self, wanted: impl Fn(&Lane) -> bool) -> LaneSet {
        self.lane_ids().filter(|id| wanted(self.lane(*id))).collect()
    }

    /// Lanes that compute on a device.
    pub fn device_computes(&self) -> LaneSet {
        let on_device = |lane: &Lane| matches!(lane.engine, Engine::Gpu { .. });
        self.lane_set(|lane| lane.kind == LaneKind::Compute && on_device(lane))
    }

    /// Lanes that slow others down.
    pub fn heavy_lanes(&self) -> LaneSet {
        self.lane_set(|lane| lane.kind.is_heavy())
    }

    /// The first lane for which `wanted` holds.
    pub fn find_lane(&self, wanted: impl Fn(&Lane) -> bool) -> Option<LaneId> {
        self.lane_ids().find(|id| wanted(self.lane(*id)))
    }

    /// The host's memory: the first of its kind.
    pub fn host(&self) -> MemoryId {
        self.memory_of(MemoryKind::Dram).unwrap_or(MemoryId::DRAM)
    }

    /// The device's memory, if there is a device: the first of its kind.
    pub fn device(&self) -> Option<MemoryId> {
        self.memory_of(MemoryKind::Vram)
    }

    fn memory_of(&self, kind: MemoryKind) -> Option<MemoryId> {
        let place = self.memories.iter().position(|memory| memory.kind() == kind)?;
        Some(MemoryId(place as u8))
    }

    /// The segments of a memory.
    pub fn segments_of(&self, memory: MemoryId) -> Vec<SegmentId> {
        let kind = self.memory_kind(memory);
        let holds = kind.map_or(&[][..], MemoryKind::segments);
        holds.iter().map(|holds| SegmentId { memory, holds: *holds }).collect()
    }

    /// All segments that have bytes of their own: those of all memories but the control segment.
    pub fn segments(&self) -> Vec<SegmentId> {
        let ids = (0..self.memories.len() as u8).map(MemoryId);
        ids.filter(|id| *id != MemoryId::CONTROL).flat_map(|id| self.segments_of(id)).collect()
    }

    /// Whether a worker's lanes may touch a memory.
    pub fn maps(&self, worker: WorkerId, memory: MemoryId) -> bool {
        memory == MemoryId::CONTROL || self.worker(worker).memories.contains(&memory)
    }
}

#[cfg(test)]
mod tests;
