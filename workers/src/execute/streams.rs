//! Residuals of several streams: their mappings, the sums that are the inputs of a layer's halves,
//! and the addition of outputs.

use kernels::{Element, Kernels, Linear, LinearOut, StreamRules};
use model::config::ModelConfig;
use model::ops::{Op, Value};
use model::streams::ResidualStreams;
use program::ir::Compute;

use super::operands::Operands;

/// Scratch for rows of streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Sums of streams, `[rows, hidden]`.
    sums: Vec<f32>,
    /// Rows whose logits are computed, `[rows, streams, hidden]`.
    last: Vec<f32>,
    /// Mapping of these rows, `[rows, streams]`.
    map: Vec<f32>,
}

impl Streams {
    /// Allocates for up to `rows` rows, of which the logits of up to `logits_rows` are computed;
    /// nothing for a residual of one stream.
    pub(super) fn new(config: &ModelConfig, rows: usize, logits_rows: usize) -> Streams {
        let [hidden, width, count] = config
            .features
            .streams
            .map_or([0; 3], |streams| [config.hidden_size, config.residual_size(), streams.count]);
        Streams {
            sums: vec![0.0; rows.max(logits_rows) * hidden],
            last: vec![0.0; logits_rows * width],
            map: vec![0.0; logits_rows * count],
        }
    }

    /// Returns scratch for the embeddings of `rows` rows, `[rows, hidden]`.
    pub(super) fn embedded(&mut self, config: &ModelConfig, rows: usize) -> &mut [f32] {
        &mut self.sums[..rows * config.hidden_size]
    }

    /// Copies the embeddings of rows to all streams.
    pub(super) fn spread(&self, config: &ModelConfig, out: &mut [f32]) {
        let embedded = self.sums.chunks_exact(config.hidden_size);
        for (row, embedded) in out.chunks_exact_mut(config.residual_size()).zip(embedded) {
            let streams = row.chunks_exact_mut(config.hidden_size);
            streams.for_each(|stream| stream.copy_from_slice(embedded));
        }
    }

    /// Runs `Norm0` or `Norm1`.
    pub(super) fn norm<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) {
        let config = operands.config;
        let x = operands.rows::<f32>(compute.inputs[0], Value::Hidden, rows);
        let map = operands.rows::<f32>(compute.inputs[1], compute.op.reads(config)[1], rows);
        let sums = &mut self.sums[..rows * config.hidden_size];
        kernels.sum_streams(rows, config.stream_count(), x, map, sums);
        let gain = operands.vector(compute, 0).expect("a norm has a gain");
        let out = operands.output::<T>(compute, rows);
        kernels.rms_norm(rows, config.hidden_size, sums, gain, config.norm_eps, None, out);
    }

    /// Runs `FinalNorm` on the rows of `index` among all rows of `x`.
    pub(super) fn final_norm<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        x: &[f32],
        index: &[u32],
    ) {
        let config = operands.config;
        let (rows, hidden, width) = (index.len(), config.hidden_size, config.residual_size());
        let last = &mut self.last[..rows * width];
        for (last, row) in last.chunks_exact_mut(width).zip(index) {
            last.copy_from_slice(&x[*row as usize * width..][..width]);
        }
        let streams = streams(config);
        let map = &mut self.map[..rows * streams.count];
        multiply(kernels, operands, compute, last, map);
        let base = operands.vector(compute, 0).expect("a mapping has a base");
        let (base, scales) = base.split_at(streams.count);
        let rules = StreamRules { streams, scales, base, norm_eps: config.norm_eps };
        kernels.stream_map(rows, &rules, last, map);
        let sums = &mut self.sums[..rows * hidden];
        kernels.sum_streams(rows, streams.count, last, map, sums);
        let gain = operands.vector(compute, 1).expect("a norm has a gain");
        let out = operands.output::<T>(compute, rows);
        kernels.rms_norm(rows, hidden, sums, gain, config.norm_eps, None, out);
    }
}

fn streams(config: &ModelConfig) -> ResidualStreams {
    config.features.streams.expect("an operation of a residual of streams")
}

/// Runs `StreamMap0` or `StreamMap1`.
pub(super) fn map(kernels: &Kernels, operands: &Operands<'_>, compute: &Compute, rows: usize) {
    let config = operands.config;
    let x = operands.rows::<f32>(compute.inputs[0], Value::Hidden, rows);
    let out = operands.output::<f32>(compute, rows);
    multiply(kernels, operands, compute, x, out);
    let vector = |index| operands.vector(compute, index).expect("mappings have scales and bases");
    let (base, scales) = (vector(0), vector(1));
    let rules = StreamRules { streams: streams(config), scales, base, norm_eps: config.norm_eps };
    kernels.stream_map(rows, &rules, x, out);
}

/// Multiplies rows of streams by the operation's matrix.
fn multiply(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    x: &[f32],
    out: &mut [f32],
) {
    let (n, k) = operands.matrix_shape(compute);
    let (rows, weight) = (x.len() / k, operands.matrix::<f32>(compute));
    kernels.linear(Linear { rows, n, k, x, weight, bias: None, out: LinearOut::Store(out) });
}

/// Runs `StreamAdd0` or `StreamAdd1`.
pub(super) fn add<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let config = operands.config;
    let (inputs, values) = (&compute.inputs, compute.op.reads(config));
    let y = operands.rows::<T>(inputs[0], values[0], rows);
    let floats = |place: usize| operands.rows::<f32>(inputs[place], values[place], rows);
    let (more, map) = match compute.op {
        Op::StreamAdd0 => (None, floats(1)),
        _ => (Some(floats(1)), floats(2)),
    };
    let out = operands.output::<f32>(compute, rows);
    kernels.add_to_streams(rows, config.stream_count(), y, more, map, out);
}
