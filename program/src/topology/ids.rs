//! Typed indices into a topology's lists, and the ids of the canonical machines.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of additional host memories that can store weights.
pub const SLOW_TIERS_MAX: usize = 2;

/// Index into `Topology::memories`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemoryId(pub u8);

/// Index into `Topology::workers`, and of the worker's words in the control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerId(pub u8);

/// Index into `Topology::lanes`, and of the lane's timeline in the control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaneId(pub u8);

impl MemoryId {
    /// The step table; every topology begins with it.
    pub const CONTROL: MemoryId = MemoryId(0);
    /// The host's memory in the canonical machines.
    pub const DRAM: MemoryId = MemoryId(1);
    /// The device's memory in [`super::Topology::with_device`].
    pub const VRAM: MemoryId = MemoryId(2);
    /// All storages of the machine: each of them holds everything that is stored there.
    pub const STORAGES: MemoryId = MemoryId(u8::MAX);

    /// Returns the identity of an additional host memory, by its number among these. It is a tier
    /// of weights independent of its index in a topology's list.
    pub const fn slow_tier(number: u8) -> MemoryId {
        MemoryId(u8::MAX - 1 - number)
    }

    /// Returns the number of an additional host memory; `None` for any other memory.
    pub const fn slow_tier_index(self) -> Option<u8> {
        let number = (u8::MAX - 1).wrapping_sub(self.0);
        if (number as usize) < SLOW_TIERS_MAX { Some(number) } else { None }
    }

    /// Returns the index in the topology's list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl WorkerId {
    pub const CPU: WorkerId = WorkerId(0);
    /// In [`super::Topology::with_device`], as [`WorkerId::TRANSFER`].
    pub const GPU: WorkerId = WorkerId(1);
    pub const TRANSFER: WorkerId = WorkerId(2);

    /// Returns the index in the topology's list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LaneId {
    pub const CPU_COMPUTE: LaneId = LaneId(0);
    /// Appends fresh K and V from the device to the host cache.
    pub const CPU_APPEND: LaneId = LaneId(1);
    /// In [`super::Topology::with_device`], as all below.
    pub const GPU_COMPUTE: LaneId = LaneId(2);
    /// Expands stored weights to the wider format that the device multiplies.
    pub const GPU_DECOMPRESS: LaneId = LaneId(3);
    /// Streamed weights and KV, host to device.
    pub const H2D_WEIGHTS: LaneId = LaneId(4);
    pub const H2D_ACTIVATIONS: LaneId = LaneId(5);
    pub const D2H: LaneId = LaneId(6);

    /// Returns the index in the topology's list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
