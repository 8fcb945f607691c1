//! Deferred rows: rows of the host's sequences that advance by one layer in each step (APEX's
//! asynchronous overlap, section 3.3).
//!
//! The program has one batch for linears. Its first stream contains the rows that pass all layers,
//! for which the device computes attention. There is one further stream for each number of
//! completed layers, from 0 to all, with the rows of host sequences that have completed that many
//! layers: stream `1 + n` joins the rows of the first from the attention of layer `n - 1` to that
//! of layer `n`. There its residual stream, query, key and value are copied to host memory, where
//! they are *kept*: in the next step, in which the row belongs to the following stream, the host
//! computes its attention concurrently with everything the device does before that layer, and the
//! row joins again.
//!
//! Kept values have a row for each slot. Chunk `n` of such a buffer contains the rows that have
//! completed `n` layers, whichever these are in a step.

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::map::Chunk;

/// Values of a deferred row that stay on the host until the next step.
pub const KEPT: [Value; 4] = [Value::Hidden, Value::Query, Value::Key, Value::Value];

/// Returns the stream of the rows that have completed `layers` layers.
pub const fn stream_after(layers: u16) -> u16 {
    1 + layers
}

/// Returns the number of streams in the program of a model with `layers` layers.
pub const fn streams(layers: u16) -> u16 {
    stream_after(layers) + 1
}

/// Returns the rows of a kept value that have completed `after_attention` of a model's layers.
pub const fn kept(completed_layers: u16, layers: u16) -> Chunk {
    Chunk { index: completed_layers, of: layers + 1 }
}

/// Returns true if rows of a model can be deferred: attention has keys and values, and in each
/// layer, the operations after attention use no earlier value except the residual stream.
pub fn can_defer_rows(config: &ModelConfig) -> bool {
    let is_cut = |layer: usize| {
        let ops = config.layer_ops(layer);
        let Some(last) = ops.iter().rposition(|op| op.is_attention()) else { return false };
        let (before, after_attention) = ops.split_at(last + 1);
        let written = |ops: &[Op], value: &Value| {
            ops.iter().any(|op| op.writes(config) == Some(*value) && *value != Value::Hidden)
        };
        let mut read = after_attention.iter().flat_map(|op| op.reads(config));
        read.all(|value| *value == Value::Attended || !written(before, value))
    };
    let has_values = !config.has_single_cache() && !config.has_kind_models();
    has_values && !config.layers.has_states() && (0..config.num_layers).all(is_cut)
}
