//! Scratch of the experts, allocated once from stated limits.

use std::cell::RefCell;

use super::parts::{PassPlan, padded_len};
use crate::linear::sizes::{PACK_ROWS, packed_row};
use crate::scratch::{AlignedBuffer, ThreadScratch};
use crate::simd::MAX_LANES;

/// The largest mixture of experts that one set of kernels can process. A call beyond it panics,
/// except for `rows`, which only determines how many rows are processed at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertLimits {
    /// Rows processed at a time; each further pass reads the experts' weights again.
    pub rows: usize,
    /// Experts per row.
    pub top_k: usize,
    pub experts: usize,
    /// Input width of an expert's linears: the larger of the hidden width and the expert's width.
    pub inputs: usize,
    /// Output width of `expert_down`.
    pub hidden: usize,
}

impl ExpertLimits {
    /// The limits of a model without experts.
    pub const NONE: ExpertLimits =
        ExpertLimits { rows: 0, top_k: 0, experts: 0, inputs: 0, hidden: 0 };

    /// Returns the number of routing entries of a pass.
    fn slots(&self) -> usize {
        self.rows * self.top_k
    }

    /// Returns the maximum number of parts of a pass: the last part of each expert, and the full
    /// parts.
    fn parts(&self) -> usize {
        self.slots().min(self.experts + self.slots() / PACK_ROWS)
    }
}

/// Working memory of expert operations.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(super) limits: ExpertLimits,
    /// Groups and parts of the current pass.
    pub(super) plan: RefCell<PassPlan>,
    /// Packed rows of all parts.
    pub(super) packed: AlignedBuffer,
    /// Consecutive rows of a part, one buffer per thread.
    pub(super) gathered: ThreadScratch,
    /// `[rows, hidden]`: sums over the experts so far.
    pub(super) totals: AlignedBuffer,
}

impl Workspace {
    pub(crate) fn new(threads: usize, limits: ExpertLimits) -> Workspace {
        let (slots, parts) = (limits.slots(), limits.parts());
        let packed = slots * packed_row(limits.inputs) + parts * padded_len(MAX_LANES);
        Workspace {
            limits,
            plan: RefCell::new(PassPlan::new(limits.experts, slots, parts, limits.rows)),
            packed: AlignedBuffer::new(packed),
            gathered: ThreadScratch::new(threads, limits.rows.min(PACK_ROWS) * limits.inputs),
            totals: AlignedBuffer::new(limits.rows * limits.hidden),
        }
    }
}
