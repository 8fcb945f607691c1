//! Total order of candidates, with tie-breaking.

use crate::layer::closed_form::{LatencyTerms, LayerCandidate};
use crate::layer::time::Ps;

/// Smaller is better, field by field: latency, imbalance, number of GPU operations, number of
/// weights from NVMe, `i`, `j`; then without compression, and the earlier weights from NVMe, so
/// that no two candidates are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) latency: Ps,
    pub(crate) imbalance: Ps,
    pub(crate) gpu_ops: usize,
    pub(crate) nvme_weights: usize,
    pub(crate) interval: (usize, usize),
    pub(crate) compressed: bool,
    pub(crate) nvme: Vec<usize>,
}

impl Rank {
    pub(crate) fn new(candidate: &LayerCandidate, terms: &LatencyTerms) -> Rank {
        let (start, end) = candidate.interval;
        Rank {
            latency: terms.latency(),
            imbalance: terms.imbalance(),
            gpu_ops: end - start,
            nvme_weights: candidate.nvme.len(),
            interval: candidate.interval,
            compressed: candidate.compressed,
            nvme: candidate.nvme.clone(),
        }
    }
}
