//! Placements with what they take.

use program::map::DeviceMap;

use super::{Estimate, Factors};
use crate::policy::Placement;
use crate::policy::by_name::PolicyName;

/// How much a search may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Where many shapes are compared.
    Quick,
}

/// A placement that was estimated and fits memory.
#[derive(Debug, Clone)]
pub struct Considered {
    pub name: PolicyName,
    pub placement: Placement,
    /// No two maps of a search are equal.
    pub map: DeviceMap,
    pub estimate: Estimate,
    /// What it took over what is simulated: runs of this very plan that have ended, or else decode
    /// as it was rehearsed; of what was neither as simulated, or as the others took that were.
    pub factors: Factors,
    pub tried: Tried,
}

/// How a placement was tried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    Never,
    /// Some decode steps of a few layers.
    Rehearsed,
    /// So many whole runs have ended.
    Finished(usize),
}

impl Considered {
    /// One decode step in the middle of the output, all batches.
    pub fn step_ns(&self) -> f64 {
        self.estimate.step_ns * self.factors.decode
    }

    /// Prompts of a group of full batches.
    pub fn prefill_ns(&self) -> f64 {
        self.estimate.prefill_ns * self.factors.prefill
    }

    /// Prefill and all decode steps.
    pub fn total_ns(&self, max_new: u32) -> f64 {
        let (prefill_ns, step_ns) = (self.prefill_ns(), self.step_ns());
        Estimate { prefill_ns, step_ns }.total_ns(max_new)
    }
}

/// The fastest first.
pub(super) fn sort(considered: &mut [Considered], max_new: u32) {
    considered.sort_by(|a, b| a.total_ns(max_new).total_cmp(&b.total_ns(max_new)));
}
