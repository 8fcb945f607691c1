//! One executed instruction, measured or simulated.

use crate::ir::ProgramId;
use crate::topology::LaneId;

/// Execution interval of a work instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub lane: LaneId,
    pub program: ProgramId,
    /// Step of the program; consecutive, starting anywhere.
    pub step: u32,
    /// Index in the lane's list.
    pub instruction: u32,
    /// Nanoseconds on a clock shared by all lanes.
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Span {
    /// Returns the duration of the span.
    pub const fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}
