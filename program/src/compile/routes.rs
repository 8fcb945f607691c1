//! Assigns lanes of the topology to tasks, and memories to devices.

use crate::map::{ComputeDevice, DeviceMap};
use crate::topology::{
    HardwareEngine, Holds, LaneId, LaneKind, LaneSpec, MemoryId, MemoryKind, SegmentId, Topology,
};

use super::error::CompileError;

/// Lanes and memories by purpose. If the topology has no device, the host's take its place; a map
/// that requires a device was refused.
#[derive(Debug)]
pub(super) struct Routes<'a> {
    pub(super) topology: &'a Topology,
    host: MemoryId,
    device: MemoryId,
    cpu_compute: LaneId,
    gpu_compute: LaneId,
    /// Lane for appends to the host's caches, which must not block the CPU.
    pub(super) append: LaneId,
    pub(super) decompress: LaneId,
    pub(super) upload_weights: LaneId,
    upload_values: LaneId,
    download: LaneId,
}

impl<'a> Routes<'a> {
    /// Creates the routes of a topology.
    ///
    /// # Errors
    /// A topology without a lane or memory that the map requires.
    pub(super) fn new(topology: &'a Topology, map: &DeviceMap) -> Result<Self, CompileError> {
        topology.check()?;
        let on_gpu = |lane: &LaneSpec| matches!(lane.engine, HardwareEngine::Gpu { .. });
        let find = |what, found: &dyn Fn(&LaneSpec) -> bool| {
            topology.find_lane(found).ok_or(CompileError::NoLane { what })
        };
        let host = topology.host();
        if topology.memory_kind(host) != Some(MemoryKind::Dram) {
            return Err(CompileError::NoMemory { what: "activations", memory: host.0 });
        }
        let cpu_compute =
            find("computes on the CPU", &|lane| lane.kind == LaneKind::Compute && !on_gpu(lane))?;
        let append = topology.find_lane(|lane| lane.kind == LaneKind::Append && !on_gpu(lane));
        let of_device = |what, found: &dyn Fn(&LaneSpec) -> bool| match find(what, found) {
            Err(_) if !map.uses_gpu() => Ok(cpu_compute),
            found => found,
        };
        let kind = |wanted: LaneKind| move |lane: &LaneSpec| lane.kind == wanted;
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

    /// Returns the lane that computes on a device.
    pub(super) const fn compute(&self, device: ComputeDevice) -> LaneId {
        match device {
            ComputeDevice::Cpu => self.cpu_compute,
            ComputeDevice::Gpu => self.gpu_compute,
        }
    }

    /// Returns the lane that copies values to a device.
    pub(super) const fn copy_to(&self, device: ComputeDevice) -> LaneId {
        match device {
            ComputeDevice::Cpu => self.download,
            ComputeDevice::Gpu => self.upload_values,
        }
    }

    /// Returns the memory on which a device works.
    pub(super) const fn near(&self, device: ComputeDevice) -> MemoryId {
        match device {
            ComputeDevice::Cpu => self.host,
            ComputeDevice::Gpu => self.device,
        }
    }

    /// Returns the segment near a device for a kind of content.
    pub(super) fn segment(&self, device: ComputeDevice, holds: Holds) -> SegmentId {
        self.segment_of(self.near(device), holds)
    }

    /// Returns the segment of a memory for a kind of content.
    pub(super) fn segment_of(&self, memory: MemoryId, holds: Holds) -> SegmentId {
        let kind = self.topology.memory_kind(memory);
        let found = kind.and_then(|kind| kind.segment(holds));
        SegmentId { memory, holds: found.unwrap_or(holds) }
    }
}
