//! What is said of a chosen placement wherever one is shown.

use planner::policy::Policy;
use planner::priced::Chosen;

use crate::report::step::{Parts, Step};

/// New tokens of a group of full batches over its predicted time.
pub(super) fn predicted_tokens_per_s(chosen: &Chosen) -> f64 {
    let shape = &chosen.plan.shape;
    let sequences = f64::from(shape.batches) * f64::from(shape.batch_size);
    sequences * f64::from(shape.max_new) / (chosen.predicted.total_ns() / 1e9)
}

/// A decode step of all batches in the middle of the output.
pub(super) fn decode_step_ms(chosen: &Chosen) -> f64 {
    let Parts { layers_ms, rest_ms } = Step::of(&chosen.plan, &chosen.steady).parts();
    (layers_ms + rest_ms) * chosen.considered[0].slowed
}

/// The entries of a streamed layer's list that the GPU runs, where they are an interval.
pub(super) fn gpu_interval(chosen: &Chosen) -> Option<(usize, usize)> {
    let count = chosen.table.ops.len();
    match chosen.placement.policy {
        Policy::CpuOnly => Some((0, 0)),
        Policy::GpuOnly | Policy::Resident => Some((0, count)),
        Policy::TwoSplit { split, .. } => Some((split.start, split.end)),
        Policy::OneSplit { start, .. } => Some((start, count)),
        Policy::Lia { .. } | Policy::Flexgen(_) => None,
    }
}
