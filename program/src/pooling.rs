//! Pooling of hidden states: `Sample` of a run that pools also reads the rows after the final norm,
//! next to their logits, and adds those of sequences that request it to the step table.

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::expert_portions;
use crate::map::Chunk;

/// Returns the values that an operation or a chunk of it reads, for the model of its layer; `pools`
/// is [`crate::plan::RunShape::pools`].
pub fn inputs(
    op: Op,
    chunk: Option<Chunk>,
    config: &ModelConfig,
    pools: bool,
) -> impl Iterator<Item = Value> + use<> {
    let pooled = (op == Op::Sample && pools).then_some(Value::LastNormed);
    expert_portions::reads(op, config, chunk).iter().copied().chain(pooled)
}
