//! One executed instruction, measured or simulated.

use crate::ir::ProgramId;
use crate::topology::LaneId;

/// When a work instruction ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub lane: LaneId,
    pub program: ProgramId,
    /// Of the program, from 0 or any other number; consecutive.
    pub step: u32,
    /// Index in the lane's list.
    pub instruction: u32,
    /// Nanoseconds on one clock for all lanes.
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Span {
    /// How long it took.
    pub const fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}
