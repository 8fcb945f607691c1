//! What is said of a chosen placement wherever one is shown.

use planner::priced::Chosen;

use crate::report::step::{Parts, Step};

/// A decode step of all batches in the middle of the output.
pub(super) fn decode_step_ms(chosen: &Chosen) -> f64 {
    let Parts { layers_ms, rest_ms } = Step::of(&chosen.plan, &chosen.steady).parts();
    (layers_ms + rest_ms) * chosen.considered[0].slowed
}
