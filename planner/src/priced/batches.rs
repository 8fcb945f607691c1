//! `--batches auto`: the N x B with the highest predicted throughput, each with its own best
//! placement.

use super::choose::{Question, estimate_total_ns};
use super::considered::Effort;
use crate::batches::{BatchChoice, choose as choose_shape};
use crate::budget::Request;
use crate::policy::{Placement, Policy};

/// Returns the shape with the highest predicted throughput within the given number of sequences and
/// batch size; `None` if nothing fits. The batches of the question are ignored.
pub fn best_batches(
    question: &Question<'_>,
    sequences_max: usize,
    size_max: u16,
) -> Option<(u16, u16)> {
    let request = question.request;
    let plain = [Policy::CpuOnly, Policy::GpuOnly].map(Placement::of);
    let fits = |count: u32, size: u32| {
        let Some((count, size)) = sizes(count, size) else { return false };
        let fits = |placement| Request { placement, ..*request }.fits(count, size);
        let is_filled = usize::from(count) * usize::from(size) <= sequences_max.max(1);
        is_filled && plain.iter().any(|placement| matches!(fits(placement), Ok(true)))
    };
    let rate = |count: u32, size: u32, effort: Effort| {
        let (batches, batch_size) = sizes(count, size)?;
        let total_ns = estimate_total_ns(&Question { batches, batch_size, effort, ..*question })?;
        let tokens = f64::from(count) * f64::from(size) * f64::from(request.max_new);
        Some(tokens / (total_ns / 1e9))
    };
    let at_sight = |count, size| rate(count, size, Effort::Quick);
    let closely = |count, size| rate(count, size, question.effort);
    let BatchChoice { batches, batch_size, .. } =
        choose_shape(size_max.into(), fits, at_sight, closely)?;
    sizes(batches, batch_size)
}

fn sizes(count: u32, size: u32) -> Option<(u16, u16)> {
    Some((u16::try_from(count).ok()?, u16::try_from(size).ok()?))
}
