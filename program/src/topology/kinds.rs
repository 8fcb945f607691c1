//! What each kind of lane may run, and which kinds of memory that may touch: one table.

use serde::{Deserialize, Serialize};

/// What a lane is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LaneKind {
    /// Operations of the model, and appends.
    Compute,
    /// Appends that must not hold up the lane that computes.
    Append,
    /// Weights to the wider form that a device multiplies.
    Decompress,
    /// Streamed weights and caches, host to device.
    UploadWeights,
    /// Activations, host to device.
    UploadValues,
    /// Activations, device to host.
    Download,
    /// Weights from storage to the host, or straight to a device.
    Read,
}

impl LaneKind {
    /// Whether lanes of this kind move or compute on much at a time, so that they slow others down.
    pub const fn is_heavy(self) -> bool {
        match self {
            LaneKind::Compute | LaneKind::Decompress | LaneKind::UploadWeights | LaneKind::Read => {
                true
            }
            LaneKind::Append | LaneKind::UploadValues | LaneKind::Download => false,
        }
    }

    /// Whether the lane copies from the host to a device.
    pub const fn uploads(self) -> bool {
        matches!(self, LaneKind::UploadWeights | LaneKind::UploadValues)
    }
}

/// A kind of memory, without its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    Control,
    Dram,
    Vram,
    Storage,
}

/// A kind of work that lanes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Compute,
    Append,
    Decompress,
    CopyWeights,
    CopyCache,
    /// Caches that stay where they are brought to.
    MoveCache,
    CopyValue,
    Read,
}

/// A row of the table: `lane` may do `work` on operands in `from`, with results in `to`. Beyond
/// that a lane touches only what its worker maps.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub lane: LaneKind,
    pub work: &'static [Work],
    pub from: &'static [MemoryKind],
    pub to: &'static [MemoryKind],
}

/// All that lanes may do.
pub const RULES: &[Rule] = {
    use MemoryKind::{Dram, Storage, Vram};
    const NEAR: &[MemoryKind] = &[Dram, Vram];
    const UPLOADED: &[Work] =
        &[Work::CopyWeights, Work::CopyCache, Work::MoveCache, Work::CopyValue];
    const DOWNLOADED: &[Work] = &[Work::MoveCache, Work::CopyValue];
    &[
        Rule {
            lane: LaneKind::Compute,
            work: &[Work::Compute, Work::Append],
            from: NEAR,
            to: NEAR,
        },
        Rule { lane: LaneKind::Append, work: &[Work::Append], from: NEAR, to: NEAR },
        Rule { lane: LaneKind::Decompress, work: &[Work::Decompress], from: &[Vram], to: &[Vram] },
        Rule { lane: LaneKind::UploadWeights, work: UPLOADED, from: &[Dram], to: &[Vram] },
        Rule { lane: LaneKind::UploadValues, work: UPLOADED, from: &[Dram], to: &[Vram] },
        Rule { lane: LaneKind::Download, work: DOWNLOADED, from: &[Vram], to: &[Dram] },
        Rule { lane: LaneKind::Read, work: &[Work::Read], from: &[Storage], to: NEAR },
    ]
};

/// The row of a kind of lane for a kind of work; `None`: such lanes do not do it.
pub fn rule(lane: LaneKind, work: Work) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.lane == lane && rule.work.contains(&work))
}

/// What a segment of a memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Holds {
    Weights,
    Kv,
    Activations,
    /// A device's arena: all of its buffers.
    Arena,
    /// The step table; buffers here have no address.
    Table,
}

impl MemoryKind {
    /// The segments that a memory of this kind is divided into.
    pub const fn segments(self) -> &'static [Holds] {
        match self {
            MemoryKind::Control => &[Holds::Table],
            MemoryKind::Dram => &[Holds::Weights, Holds::Kv, Holds::Activations],
            MemoryKind::Vram => &[Holds::Arena],
            MemoryKind::Storage => &[Holds::Weights],
        }
    }

    /// The segment of such a memory for `wanted`; `None` where it keeps no such thing.
    pub fn segment(self, wanted: Holds) -> Option<Holds> {
        let segments = self.segments();
        segments.iter().copied().find(|holds| *holds == wanted || *holds == Holds::Arena)
    }
}
