//! Pooling of hidden states: `Sample` of a run that pools also reads the rows after the final norm,
//! next to their logits, and adds those of sequences that request it to the step table.

use model::config::ModelConfig;
use model::ops::{Op, Value};

/// Returns the values that an operation reads, for the model of its layer; `pools` is
/// [`crate::plan::RunShape::pools`].
pub fn inputs(op: Op, config: &ModelConfig, pools: bool) -> impl Iterator<Item = Value> + use<> {
    let pooled = (op == Op::Sample && pools).then_some(Value::LastNormed);
    op.reads(config).iter().copied().chain(pooled)
}
