//! Inputs of operations, among them the hidden states that `Sample` reads next to logits: in a run
//! that pools, the rows after the final norm, of which it adds those of sequences that request it
//! to the step table; and for multi-token prediction the residual stream of all rows.

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
    let is_sampled = op == Op::Sample && config.features.hidden_states.are_sampled();
    let sampled = is_sampled.then_some(Value::Hidden);
    expert_portions::reads(op, config, chunk).iter().copied().chain(pooled).chain(sampled)
}
