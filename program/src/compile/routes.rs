//! Which lane of the topology does what, and which memory is near which device.

use crate::map::{Device, DeviceMap};
use crate::topology::{
    Engine, Holds, Lane, LaneId, LaneKind, MemoryId, MemoryKind, SegmentId, Topology,
};

use super::error::CompileError;

/// Lanes and memories by what the compiler wants of them. Those of a device stand for the host's
/// where the topology has none; a map that asks for them was refused.
#[derive(Debug)]
pub(super) struct Routes<'a> {
    pub(super) topology: &'a Topology,
    host: MemoryId,
    device: MemoryId,
    cpu_compute: LaneId,
    gpu_compute: LaneId,
    /// Appends to the host's caches that must not hold up the CPU.
    pub(super) append: LaneId,
    pub(super) decompress: LaneId,
    pub(super) upload_weights: LaneId,
    upload_values: LaneId,
    download: LaneId,
}

impl<'a> Routes<'a> {
    /// # Errors
    /// A topology that lacks a lane or a memory which the map asks for.
    pub(super) fn new(topology: &'a Topology, map: &DeviceMap) -> Result<Self, CompileError> {
        topology.check()?;
        let on_gpu = |lane: &Lane| matches!(lane.engine, Engine::Gpu { .. });
        let find = |what, found: &dyn Fn(&Lane) -> bool| {
            topology.find_lane(found).ok_or(CompileError::NoLane { what })
        };
        let host = topology.host();
        if topology.memory_kind(host) != Some(MemoryKind::Dram) {
            return Err(CompileError::NoMemory { what: "activations", memory: host.0 });
        }
        let cpu_compute =
            find("computes on the CPU", &|lane| lane.kind == LaneKind::Compute && !on_gpu(lane))?;
        let append = topology.find_lane(|lane| lane.kind == LaneKind::Append && !on_gpu(lane));
        let of_device = |what, found: &dyn Fn(&Lane) -> bool| match find(what, found) {
            Err(_) if !map.uses_gpu() => Ok(cpu_compute),
            found => found,
        };
        let kind = |wanted: LaneKind| move |lane: &Lane| lane.kind == wanted;
        let gpu_compute = of_device("computes on the device", &|lane| {
            lane.kind == LaneKind::Compute && on_gpu(lane)
        })?;
        if map.uses_gpu() && topology.device().is_none() {
            let memory = MemoryId::VRAM.0;
            return Err(CompileError::NoMemory { what: "the device's activations", memory });
        }
        Ok(Routes {
            topology,
            host,
            device: topology.device().unwrap_or(host),
            cpu_compute,
            gpu_compute,
            append: append.unwrap_or(cpu_compute),
            decompress: of_device("decompresses", &kind(LaneKind::Decompress))?,
            upload_weights: of_device("uploads weights", &kind(LaneKind::UploadWeights))?,
            upload_values: of_device("uploads activations", &kind(LaneKind::UploadValues))?,
            download: of_device("downloads activations", &kind(LaneKind::Download))?,
        })
    }

    /// The lane that computes on a device.
    pub(super) const fn compute(&self, device: Device) -> LaneId {
        match device {
            Device::Cpu => self.cpu_compute,
            Device::Gpu => self.gpu_compute,
        }
    }

    /// The lane that copies values to a device.
    pub(super) const fn copy_to(&self, device: Device) -> LaneId {
        match device {
            Device::Cpu => self.download,
            Device::Gpu => self.upload_values,
        }
    }

    /// The memory on which a device works.
    pub(super) const fn near(&self, device: Device) -> MemoryId {
        match device {
            Device::Cpu => self.host,
            Device::Gpu => self.device,
        }
    }

    /// The segment near a device for what it holds.
    pub(super) fn segment(&self, device: Device, holds: Holds) -> SegmentId {
        self.segment_of(self.near(device), holds)
    }

    /// The segment of a memory for what it holds.
    pub(super) fn segment_of(&self, memory: MemoryId, holds: Holds) -> SegmentId {
        let kind = self.topology.memory_kind(memory);
        let found = kind.and_then(|kind| kind.segment(holds));
        SegmentId { memory, holds: found.unwrap_or(holds) }
    }
}
