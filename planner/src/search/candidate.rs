//! Placements with their predicted durations.

use program::map::DeviceMap;

use super::{Estimate, TimeFactors};
use crate::policy::Placement;
use crate::policy::name::PolicyName;

/// Effort that a search may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchEffort {
    Full,
    /// Little effort, for comparing many shapes.
    Quick,
}

/// A placement that was estimated and fits in memory.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub name: PolicyName,
    pub placement: Placement,
    /// The map; no two maps of a search are equal.
    pub map: DeviceMap,
    pub estimate: Estimate,
    /// Ratio of actual to simulated durations: of completed runs of this very plan, or else of its
    /// decode rehearsal. Without either, 1, or the ratio of the placements that have one.
    pub factors: TimeFactors,
    pub trial: TrialStatus,
}

/// How a placement was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialStatus {
    Untried,
    /// A few decode steps of a few layers.
    Rehearsed,
    /// This number of completed whole runs.
    CompletedRuns(usize),
}

impl Candidate {
    /// Returns the duration of a decode step in the middle of the output, for all batches.
    pub fn step_ns(&self) -> f64 {
        self.estimate.step_ns * self.factors.decode
    }

    /// Returns the duration of prefill of a group of full batches.
    pub fn prefill_ns(&self) -> f64 {
        self.estimate.prefill_ns * self.factors.prefill
    }

    /// Returns the duration of prefill and all decode steps.
    pub fn total_ns(&self, max_new: u32) -> f64 {
        let (prefill_ns, step_ns) = (self.prefill_ns(), self.step_ns());
        Estimate { prefill_ns, step_ns }.total_ns(max_new)
    }
}

/// Sorts the fastest first.
pub(super) fn sort_by_total(candidates: &mut [Candidate], max_new: u32) {
    candidates.sort_by(|a, b| a.total_ns(max_new).total_cmp(&b.total_ns(max_new)));
}
