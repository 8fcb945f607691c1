//! Rope frequencies of a plan, the same on every device.

use model::rope::SequenceLength;
use program::plan::Plan;

/// Inverse frequencies of all rows; `None` where the model has learned positions.
///
/// # Panics
/// Sequences of the plan could have frequencies by their length, which lanes do not tell apart.
pub(crate) fn frequencies(plan: &Plan) -> Option<Vec<f32>> {
    let rope = plan.config.rope.as_ref()?;
    let longest = SequenceLength(plan.shape.max_context);
    assert_eq!(rope.frequency_class(longest), 0, "all sequences have the same frequencies");
    Some(rope.inverse_frequencies(plan.config.head_dim))
}
