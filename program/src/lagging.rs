//! Rows of the host's sequences that get a layer further in each step (APEX's asynchronous
//! overlap, section 3.3).
//!
//! The program has one batch for linears. Its first stream are rows that pass all layers, for which
//! the device attends. A further one for each number of layers, 0 to all, are the rows of sequences
//! of the host that have so many layers behind them: stream `1 + n` joins the first one's rows from
//! where layer `n - 1` has attended to where layer `n` does. There its residual stream, query, key
//! and value leave for host memory, where they are *kept*: in the next step, in which the row is of
//! the stream behind, the host attends for it beside all that the device does before that layer,
//! and it joins again.
//!
//! Kept values have a row for each slot. Chunk `n` of such a buffer are the rows that have `n`
//! layers behind them, whichever these are in a step.

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::map::Chunk;

/// What a row leaves on the host until the next step.
pub const KEPT: [Value; 4] = [Value::Hidden, Value::Query, Value::Key, Value::Value];

/// The stream of the rows that have so many layers behind them.
pub const fn stream_behind(layers: u16) -> u16 {
    1 + layers
}

/// Streams of the program of a model with so many layers.
pub const fn streams(layers: u16) -> u16 {
    stream_behind(layers) + 1
}

/// The rows of a kept value that have `behind` of a model's layers behind them.
pub const fn kept(behind: u16, layers: u16) -> Chunk {
    Chunk { index: behind, of: layers + 1 }
}

/// Whether rows of a model may lag: in each layer what follows attention works on nothing that
/// precedes it but the residual stream.
pub fn can_lag(config: &ModelConfig) -> bool {
    let is_cut = |layer: usize| {
        let ops = config.layer_ops(layer);
        let Some(last) = ops.iter().rposition(|op| op.is_attention()) else { return false };
        let (before, behind) = ops.split_at(last + 1);
        let written = |ops: &[Op], value: &Value| {
            ops.iter().any(|op| op.writes(config) == Some(*value) && *value != Value::Hidden)
        };
        let mut read = behind.iter().flat_map(|op| op.reads(config));
        read.all(|value| *value == Value::Attended || !written(before, value))
    };
    !config.layers.have_states() && (0..config.num_layers).all(is_cut)
}
