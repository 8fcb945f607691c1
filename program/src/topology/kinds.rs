//! The work that each kind of lane may run, and the memory kinds that it may access: one table.

use serde::{Deserialize, Serialize};

/// Purpose of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LaneKind {
    /// Operations of the model, and appends.
    Compute,
    /// Appends that must not block the compute lane.
    Append,
    /// Expansion of weights to the wider format that a device multiplies.
    Decompress,
    /// Streamed weights and caches, host to device.
    UploadWeights,
    /// Activations, host to device.
    UploadValues,
    /// Activations, device to host.
    Download,
    /// Reads of weights from a storage to the host, or directly to a device.
    Read,
}

impl LaneKind {
    /// Returns true if lanes of this kind transfer or compute large amounts at a time, so that they
    /// slow others down.
    pub const fn is_heavy(self) -> bool {
        match self {
            LaneKind::Compute | LaneKind::Decompress | LaneKind::UploadWeights | LaneKind::Read => {
                true
            }
            LaneKind::Append | LaneKind::UploadValues | LaneKind::Download => false,
        }
    }

    /// Returns true if the lane copies from the host to a device.
    pub const fn uploads(self) -> bool {
        matches!(self, LaneKind::UploadWeights | LaneKind::UploadValues)
    }
}

/// Kind of a memory, without its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    Control,
    Dram,
    Vram,
    Storage,
}

/// Kind of work of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkKind {
    Compute,
    Append,
    Decompress,
    CopyWeights,
    CopyCache,
    /// Migration of caches, which stay at the destination.
    MoveCache,
    CopyValue,
    Read,
}

/// A row of the table: `lane` may do `work` on operands in `from`, with results in `to`. In
/// addition, a lane may access only what its worker maps.
#[derive(Debug, Clone, Copy)]
pub struct LaneRule {
    pub lane: LaneKind,
    pub work: &'static [WorkKind],
    pub from: &'static [MemoryKind],
    pub to: &'static [MemoryKind],
}

/// All permitted combinations.
pub const RULES: &[LaneRule] = {
    use MemoryKind::{Dram, Storage, Vram};
    const NEAR: &[MemoryKind] = &[Dram, Vram];
    const UPLOADED: &[WorkKind] =
        &[WorkKind::CopyWeights, WorkKind::CopyCache, WorkKind::MoveCache, WorkKind::CopyValue];
    const DOWNLOADED: &[WorkKind] = &[WorkKind::MoveCache, WorkKind::CopyValue];
    &[
        LaneRule {
            lane: LaneKind::Compute,
            work: &[WorkKind::Compute, WorkKind::Append],
            from: NEAR,
            to: NEAR,
        },
        LaneRule { lane: LaneKind::Append, work: &[WorkKind::Append], from: NEAR, to: NEAR },
        LaneRule {
            lane: LaneKind::Decompress,
            work: &[WorkKind::Decompress],
            from: &[Vram],
            to: &[Vram],
        },
        LaneRule { lane: LaneKind::UploadWeights, work: UPLOADED, from: &[Dram], to: &[Vram] },
        LaneRule { lane: LaneKind::UploadValues, work: UPLOADED, from: &[Dram], to: &[Vram] },
        LaneRule { lane: LaneKind::Download, work: DOWNLOADED, from: &[Vram], to: &[Dram] },
        LaneRule { lane: LaneKind::Read, work: &[WorkKind::Read], from: &[Storage], to: NEAR },
    ]
};

/// Returns the rule of a kind of lane for a kind of work; `None` if such lanes do not do it.
pub fn rule(lane: LaneKind, work: WorkKind) -> Option<&'static LaneRule> {
    RULES.iter().find(|rule| rule.lane == lane && rule.work.contains(&work))
}

/// Content of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holds {
    Weights,
    Kv,
    Activations,
    /// A device's arena, with all of its buffers.
    Arena,
    /// The step table; buffers here have no address.
    Table,
}

impl MemoryKind {
    /// Returns the segments into which a memory of this kind is divided.
    pub const fn segments(self) -> &'static [Holds] {
        match self {
            MemoryKind::Control => &[Holds::Table],
            MemoryKind::Dram => &[Holds::Weights, Holds::Kv, Holds::Activations],
            MemoryKind::Vram => &[Holds::Arena],
            MemoryKind::Storage => &[Holds::Weights],
        }
    }

    /// Returns the segment of such a memory for `wanted`; `None` if it stores no such content.
    pub fn segment(self, wanted: Holds) -> Option<Holds> {
        let segments = self.segments();
        segments.iter().copied().find(|holds| *holds == wanted || *holds == Holds::Arena)
    }
}
