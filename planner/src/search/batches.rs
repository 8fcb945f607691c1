//! `--batches auto`: the N x B with the highest predicted throughput, each with its own best
//! placement.

use super::candidate::SearchEffort;
use super::choose::{SearchRequest, estimate_total_ns};
use crate::batches::{BatchShape, choose_batches as choose_shape};
use crate::budget::PlacementRequest;
use crate::policy::{Placement, Policy};

/// Returns the shape with the highest predicted throughput within the given number of sequences and
/// batch size; `None` if nothing fits. The batches of the question are ignored.
pub fn best_batches(
    question: &SearchRequest<'_>,
    sequences_max: usize,
    size_max: u16,
) -> Option<(u16, u16)> {
    let request = question.request;
    let plain = [Policy::CpuOnly, Policy::GpuOnly].map(Placement::from_policy);
    let fits = |count: u32, size: u32| {
        let Some((count, size)) = sizes(count, size) else { return false };
        let fits = |placement| PlacementRequest { placement, ..*request }.fits(count, size);
        let is_filled = usize::from(count) * usize::from(size) <= sequences_max.max(1);
        is_filled && plain.iter().any(|placement| matches!(fits(placement), Ok(true)))
    };
    let rate = |count: u32, size: u32, effort: SearchEffort| {
        let (batches, batch_size) = sizes(count, size)?;
        let total_ns =
            estimate_total_ns(&SearchRequest { batches, batch_size, effort, ..*question })?;
        let tokens = f64::from(count) * f64::from(size) * f64::from(request.max_new);
        Some(tokens / (total_ns / 1e9))
    };
    let quick_rate = |count, size| rate(count, size, SearchEffort::Quick);
    let full_rate = |count, size| rate(count, size, question.effort);
    let BatchShape { batches, batch_size, .. } =
        choose_shape(size_max.into(), fits, quick_rate, full_rate)?;
    sizes(batches, batch_size)
}

fn sizes(count: u32, size: u32) -> Option<(u16, u16)> {
    Some((u16::try_from(count).ok()?, u16::try_from(size).ok()?))
}
