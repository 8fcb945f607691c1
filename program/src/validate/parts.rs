//! Operands of an instruction, and the parts of values that they represent.

use model::config::ModelConfig;
use model::ops::Value;

use crate::expert_portions::{reads, writes};
use crate::ir::{Compute, Region};
use crate::map::Chunk;

/// Normalises a chunk: `None` for the only chunk of one.
pub(super) fn normal(chunk: Option<Chunk>) -> Option<Chunk> {
    chunk.filter(|chunk| chunk.of > 1)
}

/// Returns inputs and output with the values that they represent.
pub(super) fn operands<'a>(
    config: &ModelConfig,
    compute: &'a Compute,
) -> impl Iterator<Item = (Value, Region)> + use<'a> {
    let (op, chunk) = (compute.op, compute.chunk);
    let inputs = reads(op, config, chunk).iter().copied().zip(compute.inputs.iter().copied());
    inputs.chain(writes(op, config, chunk).into_iter().zip(compute.output))
}
