//! Bytes of a plan by kind, and those that it may use.

use std::collections::BTreeSet;

use program::ir::{BufferId, Instruction};
use program::plan::{DeviceScratch, Footprint, Plan};
use program::topology::FAR_MAX;

/// Code, stacks, thread scratch and control segments of all processes, bytes.
pub const PROCESS_OVERHEAD_BYTES: u64 = 192 << 20;

/// What the plan may use.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub dram_bytes: u64,
    /// Of further memories of the host, which hold weights alone.
    pub far_bytes: [u64; FAR_MAX],
    /// `None`: a device without a bound of its own; its arena is DRAM.
    pub vram_bytes: Option<u64>,
    /// The device is emulated: its arena counts as DRAM too.
    pub vram_is_dram: bool,
    /// What the device needs beside a plan's buffers; `None`: nothing.
    pub device_scratch: Option<DeviceScratch>,
}

impl Limits {
    /// There is one memory of the host.
    pub const NO_FAR: [u64; FAR_MAX] = [0; FAR_MAX];

    /// Of all further memories.
    pub(super) fn far_room_bytes(&self) -> u64 {
        self.far_bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Bytes of a plan by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// In the memory that the host works in.
    pub weights_bytes: u64,
    /// In its further memories.
    pub far_bytes: [u64; FAR_MAX],
    pub kv_bytes: u64,
    pub activations_bytes: u64,
    /// With what the device needs beside the plan's buffers.
    pub device_bytes: u64,
    pub tables_bytes: u64,
}

impl Budget {
    /// Adds up a plan's buffers.
    pub fn of(plan: &Plan) -> Budget {
        Budget::from(plan.footprint(None))
    }

    /// Bytes of DRAM of all processes together.
    pub fn dram_bytes(&self, limits: &Limits) -> u64 {
        let device = if limits.vram_is_dram { self.device_bytes } else { 0 };
        self.weights_bytes
            + self.kv_bytes
            + self.activations_bytes
            + self.tables_bytes
            + device
            + PROCESS_OVERHEAD_BYTES
    }

    /// Whether the device and further memories of the host have room.
    pub(super) fn fits_elsewhere(&self, limits: &Limits) -> bool {
        let mut far = self.far_bytes.iter().zip(limits.far_bytes);
        limits.vram_bytes.is_none_or(|vram| self.device_bytes <= vram)
            && far.all(|(bytes, most)| *bytes <= most)
    }

    /// What is too much for DRAM.
    pub(super) fn missing_bytes(&self, limits: &Limits) -> u64 {
        self.dram_bytes(limits).saturating_sub(limits.dram_bytes)
    }
}

/// Bytes of the host's buffers that are copied from or to a device, which are pinned.
pub fn pinned_bytes(plan: &Plan) -> u64 {
    let lists = plan.programs.iter().flat_map(|program| &program.lanes);
    let instructions = lists.flat_map(|list| &list.instructions);
    let copied = instructions.flat_map(|instruction| match instruction {
        Instruction::Copy(copy) => vec![copy.from.buffer, copy.to.buffer],
        _ => Vec::new(),
    });
    let buffers: BTreeSet<BufferId> = copied.collect();
    let of_host = |id: &&BufferId| plan.buffer(**id).segment.memory == plan.topology.host();
    buffers.iter().filter(of_host).map(|id| plan.buffer(*id).size_bytes).sum()
}

/// Bytes of weights that all storages together read in a decode step.
pub fn step_read_bytes(plan: &Plan) -> u64 {
    let lists = plan.decode().lanes.iter();
    let reads = lists.flat_map(|list| &list.instructions).filter_map(|work| match work {
        Instruction::Read(read) => Some(plan.read_bytes(read)),
        _ => None,
    });
    reads.sum()
}

impl From<Footprint> for Budget {
    fn from(footprint: Footprint) -> Budget {
        Budget {
            weights_bytes: footprint.host_weights_bytes,
            far_bytes: footprint.far_weights_bytes,
            kv_bytes: footprint.host_kv_bytes,
            activations_bytes: footprint.host_activations_bytes,
            device_bytes: footprint.device_bytes + footprint.device_scratch_bytes,
            tables_bytes: footprint.step_table_bytes,
        }
    }
}
