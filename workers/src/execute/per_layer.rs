//! Inputs that layers have in addition to the residual stream: their computation from tokens, and
//! the gate of a layer that takes its part.

use std::f32::consts::FRAC_1_SQRT_2;

use kernels::{Element, Kernels, LinearOut};
use model::config::{ModelConfig, PerLayerInputs};
use model::ops::Value;
use model::quantized_format::WeightFormat;
use program::ir::Compute;
use program::weights::Weights;

use super::linear;
use super::operands::Operands;

/// Number of rows of the table that are expanded together.
const TABLE_ROWS: usize = 16;

/// Scratch for the inputs of all layers.
#[derive(Debug)]
pub(super) struct PerLayer {
    /// Residual stream in the run's type, `[rows, hidden]`.
    rounded: Vec<u32>,
    /// A layer's part of the inputs in the run's type, `[rows, size]`.
    part: Vec<u32>,
    /// Rows of the table, `[TABLE_ROWS, layers, size]`.
    table: Vec<f32>,
}

impl PerLayer {
    /// Allocates for up to `rows` rows; nothing for a model without such inputs.
    pub(super) fn new(config: &ModelConfig, rows: usize) -> PerLayer {
        let inputs = config.features.per_layer_inputs;
        let [hidden, part, table] = inputs.map_or([0; 3], |inputs| {
            [config.hidden_size, inputs.size, TABLE_ROWS * inputs.row_elements()]
        });
        PerLayer {
            rounded: vec![0; rows * hidden],
            part: vec![0; rows * part],
            table: vec![0.0; table],
        }
    }

    /// Runs `PerLayerEmbed` on the rows of `tokens`.
    pub(super) fn embed<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        tokens: &[u32],
    ) {
        let (config, rows) = (operands.config, tokens.len());
        let inputs = inputs(config);
        let x = rounded::<T>(&mut self.rounded, kernels, operands, compute, rows);
        let out = operands.output::<T>(compute, rows);
        linear::multiply(kernels, operands, compute, rows, x, LinearOut::Store(out));
        let gain = operands.vector(compute, 1).expect("a norm has a gain");
        let out = operands.output::<T>(compute, rows);
        // The norm's input has a factor of 1 / sqrt(hidden), of which only eps is left.
        let eps = config.norm_eps * config.hidden_size as f32;
        kernels.head_norm(rows, inputs.layers, gain, eps, out);
        let width = inputs.row_elements();
        for (tokens, out) in tokens.chunks(TABLE_ROWS).zip(out.chunks_mut(TABLE_ROWS * width)) {
            let table = &mut self.table[..out.len()];
            read_table::<T>(kernels, operands, compute, tokens, table);
            for (out, own) in out.iter_mut().zip(table) {
                *out = T::from_f32((out.to_f32() + *own) * FRAC_1_SQRT_2);
            }
        }
    }

    /// Runs `PerLayerGate`.
    pub(super) fn gate<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) {
        let inputs = inputs(operands.config);
        let layer = compute.at.layer.map_or(0, usize::from);
        let all = operands.rows::<T>(compute.inputs[1], Value::PerLayer, rows);
        let part: &mut [T] = bytemuck::cast_slice_mut(&mut self.part);
        let part = &mut part[..rows * inputs.size];
        let own = layer * inputs.size..(layer + 1) * inputs.size;
        let of_rows = all.chunks_exact(inputs.row_elements());
        for (part, all) in part.chunks_exact_mut(inputs.size).zip(of_rows) {
            part.copy_from_slice(&all[own.clone()]);
        }
        let x = rounded::<T>(&mut self.rounded, kernels, operands, compute, rows);
        let out = LinearOut::TimesGeluTanh { x: part, out: operands.output(compute, rows) };
        linear::multiply(kernels, operands, compute, rows, x, out);
    }
}

fn inputs(config: &ModelConfig) -> PerLayerInputs {
    config.features.per_layer_inputs.expect("an operation of a model with inputs of layers")
}

/// Returns the residual stream of an instruction's rows in the run's type.
fn rounded<'a, T: Element>(
    scratch: &'a mut [u32],
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) -> &'a [T] {
    let hidden = operands.rows::<f32>(compute.inputs[0], Value::Hidden, rows);
    let out: &mut [T] = bytemuck::cast_slice_mut(scratch);
    let out = &mut out[..hidden.len()];
    kernels.round(hidden, out);
    out
}

/// Expands the rows of the table of some tokens, times the root of a layer's part.
fn read_table<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    tokens: &[u32],
    out: &mut [f32],
) {
    let PerLayerInputs { size, vocab_size, .. } = inputs(operands.config);
    let (factor, buffer) = ((size as f32).sqrt(), compute.weights[1].buffer);
    let width = out.len() / tokens.len();
    match operands.plan.map.weight_formats.of(&operands.plan.config, Weights::PerLayerTable) {
        WeightFormat::Plain => {
            let table = operands.view.read::<T>(buffer, 0, vocab_size * width);
            kernels.embed(tokens, table, None, factor, out);
        }
        WeightFormat::Grouped(form) => {
            let bytes = form.size_bytes(vocab_size, width);
            let records = operands.view.read::<u8>(buffer, 0, bytes);
            kernels.embed_grouped(tokens, form, records, factor, out);
        }
    }
}
