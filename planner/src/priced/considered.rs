//! Placements with what they take.

use program::map::DeviceMap;

use super::Estimate;
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
    /// Decode as rehearsed over decode as simulated; 1 unless this very map was rehearsed.
    pub slowed: f64,
    pub rehearsed: bool,
}

impl Considered {
    /// One decode step in the middle of the output, all batches.
    pub fn step_ns(&self) -> f64 {
        self.estimate.step_ns * self.slowed
    }

    /// Prefill and all decode steps.
    pub fn total_ns(&self, max_new: u32) -> f64 {
        Estimate { step_ns: self.step_ns(), ..self.estimate }.total_ns(max_new)
    }
}

/// The fastest first.
pub(super) fn sort(considered: &mut [Considered], max_new: u32) {
    considered.sort_by(|a, b| a.total_ns(max_new).total_cmp(&b.total_ns(max_new)));
}
