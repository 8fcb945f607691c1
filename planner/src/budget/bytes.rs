//! Bytes of a plan by kind, and their limits.

use program::ir::{Instruction, ProgramId};
use program::pinned::copied_ranges;
use program::plan::{DeviceScratch, Footprint, Plan};
use program::topology::SLOW_TIERS_MAX;

/// Code, stacks, thread scratch, control segments, and staging buffers of the load, of all
/// processes, in bytes.
pub const PROCESS_OVERHEAD_BYTES: u64 = 192 << 20;

/// Memory that the plan may use.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLimits {
    pub dram_bytes: u64,
    /// Bytes of the additional host memories, which store only weights.
    pub slow_tier_bytes: [u64; SLOW_TIERS_MAX],
    /// `None` for a device without its own limit; its arena is in DRAM.
    pub vram_bytes: Option<u64>,
    /// The device is emulated: its arena counts as DRAM too.
    pub vram_is_dram: bool,
    /// Function for the memory that the device needs in addition to a plan's buffers; `None` if it
    /// needs none.
    pub device_scratch: Option<DeviceScratch>,
}

impl MemoryLimits {
    /// The value for a host with a single memory.
    pub const NO_SLOW_TIER: [u64; SLOW_TIERS_MAX] = [0; SLOW_TIERS_MAX];

    /// Returns the capacity of all additional memories.
    pub(super) fn slow_tier_capacity_bytes(&self) -> u64 {
        self.slow_tier_bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Bytes of a plan by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Weights in the near host memory.
    pub weights_bytes: u64,
    /// Weights in the additional host memories.
    pub slow_tier_bytes: [u64; SLOW_TIERS_MAX],
    pub kv_bytes: u64,
    pub activations_bytes: u64,
    /// Bytes on the device, including what it needs in addition to the plan's buffers.
    pub device_bytes: u64,
    pub tables_bytes: u64,
}

impl Budget {
    /// Sums up a plan's buffers.
    pub fn from_plan(plan: &Plan) -> Budget {
        Budget::from(plan.footprint(None))
    }

    /// Returns the DRAM bytes of all processes together.
    pub fn dram_bytes(&self, limits: &MemoryLimits) -> u64 {
        let device = if limits.vram_is_dram { self.device_bytes } else { 0 };
        self.weights_bytes
            + self.kv_bytes
            + self.activations_bytes
            + self.tables_bytes
            + device
            + PROCESS_OVERHEAD_BYTES
    }

    /// Returns true if the device and the additional host memories have sufficient capacity.
    pub(super) fn fits_device_and_slow_tiers(&self, limits: &MemoryLimits) -> bool {
        let mut slow_tiers = self.slow_tier_bytes.iter().zip(limits.slow_tier_bytes);
        limits.vram_bytes.is_none_or(|vram| self.device_bytes <= vram)
            && slow_tiers.all(|(bytes, capacity)| *bytes <= capacity)
    }

    /// Returns the number of bytes that exceed the DRAM.
    pub(super) fn missing_bytes(&self, limits: &MemoryLimits) -> u64 {
        self.dram_bytes(limits).saturating_sub(limits.dram_bytes)
    }
}

/// Size of a page of host memory, in which it is pinned.
const PAGE_BYTES: u64 = 4096;

/// Returns the bytes of host memory that are copied from or to a device, which are pinned.
pub fn pinned_bytes(plan: &Plan) -> u64 {
    let ranges = copied_ranges(plan, PAGE_BYTES).into_values().flatten();
    ranges.map(|range| range.end - range.start).sum()
}

/// Returns the bytes of weights that all storages together read in a decode step, or in a step of a
/// serving run.
pub fn step_read_bytes(plan: &Plan) -> u64 {
    let program = if plan.shape.serves { ProgramId::STEP } else { ProgramId::DECODE };
    let lists = plan.program(program).lanes.iter();
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
            slow_tier_bytes: footprint.slow_tier_weights_bytes,
            kv_bytes: footprint.host_kv_bytes,
            activations_bytes: footprint.host_activations_bytes,
            device_bytes: footprint.device_bytes + footprint.device_scratch_bytes,
            tables_bytes: footprint.step_table_bytes,
        }
    }
}
