//! One operation of the model's table on this lane's kernels.

use std::sync::Arc;

use grammar::Grammars;
use kernels::{
    Element, Kernels, Linear, LinearGrouped, LinearOut, Pool, PoolOptions, RopeTables,
    ScratchLimits, Unit, Variant,
};
use model::compressed::WeightFormat;
use model::config::Activation;
use model::ops::{Op, Value};
use program::ir::{Compute, ProgramId};
use program::map::Device;
use program::plan::Plan;

use super::operands::{Operands, output_region};
use super::{attention, sample};
use crate::error::WorkerError;
use crate::frequencies::frequencies;
use crate::lane_executor::Work;
use crate::memory::View;
use crate::rows::{SequenceRows, counts, sequences};
use crate::shared::table::StepTable;

/// Kernels and scratch of a lane that runs operations, sized by the plan's maxima.
#[derive(Debug)]
pub struct ComputeState {
    kernels: Kernels,
    inverse_frequencies: Vec<f32>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    last_rows: Vec<u32>,
    units: Vec<Unit>,
    sample: sample::SampleState,
}

impl ComputeState {
    /// Kernels of `variant` on threads as `pool` says, and scratch for all that `plan` can ask for.
    ///
    /// # Errors
    /// The system refused to start a thread.
    pub fn new(
        plan: &Plan,
        variant: Variant,
        pool: &PoolOptions,
        grammars: Option<&Arc<Grammars>>,
    ) -> Result<ComputeState, WorkerError> {
        let (config, shape) = (&plan.config, &plan.shape);
        let rows = shape.stream_rows().max(usize::from(shape.batch_size));
        let sequences = usize::from(shape.stream_sequences().max(shape.batch_size));
        let limits = ScratchLimits {
            rows,
            linear_inputs: config.hidden_size.max(config.q_size()).max(config.ffn_size),
            positions: shape.max_context as usize,
            group: config.group_size(),
            head_dim: config.head_dim,
        };
        Ok(ComputeState {
            kernels: Kernels::with_pool(
                variant,
                Pool::with_options(pool).map_err(WorkerError::Thread)?,
                limits,
            ),
            inverse_frequencies: frequencies(plan).unwrap_or_default(),
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            last_rows: Vec::with_capacity(sequences),
            units: Vec::with_capacity(sequences * config.num_kv_heads),
            sample: sample::SampleState::new(plan, grammars, sequences, pool.threads)?,
        })
    }

    /// Runs one operation in the run's dtype `T`.
    pub(super) fn run<T: Element>(&mut self, operands: Operands<'_>, compute: &Compute) -> Work {
        let (found, rows) = counts(operands.table, operands.program, compute.at);
        let rows = match compute.op {
            Op::FinalNorm | Op::Head | Op::Sample => found,
            _ => rows,
        };
        let weight_bytes = self.weight_bytes::<T>(&operands, compute, rows);
        if compute.op == Op::Sample {
            let logits = operands.rows(compute.inputs[0], Value::Logits, rows);
            let Self { kernels, sample, .. } = self;
            sample::sample_batch(kernels, &operands, compute.at, logits, sample);
            return Work { bytes: 0, rows: rows as u32 };
        }
        if rows == 0 {
            return Work::default();
        }
        let cache_bytes = match compute.op {
            Op::Embed => {
                self.embed::<T>(&operands, compute, rows);
                0
            }
            Op::Norm0 | Op::Norm1 | Op::FinalNorm => {
                self.norm::<T>(&operands, compute, rows);
                0
            }
            op if op.is_attention() => {
                let Self { kernels, units, .. } = self;
                attention::run::<T>((kernels, units), &operands, compute, rows)
            }
            _ => {
                self.linear::<T>(&operands, compute, rows);
                0
            }
        };
        Work { bytes: weight_bytes + cache_bytes, rows: rows as u32 }
    }

    /// Samples from logits that a device has computed.
    pub(crate) fn sample(
        &mut self,
        (plan, view, table): (&Plan, &View, &StepTable),
        program: ProgramId,
        compute: &Compute,
        logits: &[f32],
    ) {
        let operands = Operands { plan, view, table, program, device: Device::Gpu };
        let Self { kernels, sample, .. } = self;
        sample::sample_batch(kernels, &operands, compute.at, logits, sample);
    }

    fn weight_bytes<T>(&self, operands: &Operands<'_>, compute: &Compute, rows: usize) -> u64 {
        let config = &operands.plan.config;
        let bytes = match compute.op {
            _ if rows == 0 => 0,
            Op::Embed => rows * config.hidden_size * size_of::<T>() * compute.weights.len(),
            op => op.weight_bytes_in(config, operands.plan.shape.dtype, operands.format(compute)),
        };
        bytes as u64
    }

    /// Positions of all rows, in `self.positions`.
    fn list_positions(&mut self, operands: &Operands<'_>, compute: &Compute) {
        self.positions.clear();
        for found in sequences(operands.table, operands.program, compute.at) {
            let first = found.item.first as u32;
            self.positions.extend(first..first + found.item.rows as u32);
        }
    }

    fn embed<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let Operands { plan, table, program, .. } = *operands;
        let batch = usize::from(compute.at.batch);
        self.tokens.clear();
        for SequenceRows { item, .. } in sequences(table, program, compute.at) {
            let token = |position| table.token(batch, item.slot, position);
            self.tokens.extend((item.first..item.first + item.rows).map(token));
        }
        let out = operands.output::<f32>(compute, rows);
        let config = &plan.config;
        let matrix = match operands.format(compute) {
            WeightFormat::Plain => operands.matrix::<T>(compute),
            WeightFormat::Grouped(form) => {
                assert!(config.rope.is_some(), "only files of models with rope hold such a table");
                let records = operands.records(compute, form);
                self.kernels.embed_grouped(&self.tokens, form, records, 1.0, out);
                return;
            }
        };
        if config.rope.is_some() {
            self.kernels.embed(&self.tokens, matrix, None, 1.0, out);
            return;
        }
        self.list_positions(operands, compute);
        let count = (config.max_positions + config.position_offset) * config.hidden_size;
        let learned = operands.view.read::<T>(compute.weights[1].buffer, 0, count);
        let positions = Some((self.positions.as_slice(), learned, config.position_offset));
        self.kernels.embed(&self.tokens, matrix, positions, 1.0, out);
    }

    fn norm<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let config = &operands.plan.config;
        let (hidden, eps) = (config.hidden_size, config.norm_eps);
        let mut input_rows = rows;
        self.last_rows.clear();
        let index = if compute.op == Op::FinalNorm {
            for found in sequences(operands.table, operands.program, compute.at) {
                let SequenceRows { row0, item } = found;
                if item.samples {
                    self.last_rows.push((row0 + item.rows - 1) as u32);
                }
                input_rows = row0 + item.rows;
            }
            Some(self.last_rows.as_slice())
        } else {
            None
        };
        let x = operands.rows::<f32>(compute.inputs[0], Value::Hidden, input_rows);
        let out = operands.output::<T>(compute, rows);
        let Some(gain) = operands.vector(compute, 0) else { panic!("a norm has a gain") };
        match operands.vector(compute, 1) {
            Some(bias) => self.kernels.layer_norm(rows, hidden, x, gain, bias, eps, index, out),
            None => self.kernels.rms_norm(rows, hidden, x, gain, eps, index, out),
        }
    }

    fn linear<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let config = &operands.plan.config;
        let (n, k) = operands.matrix_shape(compute);
        let x = operands.rows::<T>(compute.inputs[0], compute.op.reads()[0], rows);
        let bias = operands.vector(compute, 0);
        let out = match compute.op {
            Op::Out | Op::Down | Op::Fc1 => {
                assert_eq!(
                    compute.inputs[1].buffer,
                    output_region(compute).buffer,
                    "the residual stream is updated in place"
                );
                LinearOut::AddTo(operands.output::<f32>(compute, rows))
            }
            Op::Head => LinearOut::StoreF32(operands.output::<f32>(compute, rows)),
            Op::Up => LinearOut::SiluMul {
                gate: operands.rows::<T>(compute.inputs[1], Value::Gate, rows),
                out: operands.output::<T>(compute, rows),
            },
            Op::Fc0 if config.activation == Activation::Relu => {
                LinearOut::Relu(operands.output::<T>(compute, rows))
            }
            Op::Fc0 => LinearOut::Gelu(operands.output::<T>(compute, rows)),
            _ => LinearOut::Store(operands.output::<T>(compute, rows)),
        };
        match operands.format(compute) {
            WeightFormat::Plain => {
                let weight = operands.matrix::<T>(compute);
                self.kernels.linear(Linear { rows, n, k, x, weight, bias, out });
            }
            WeightFormat::Grouped(form) => {
                let records = operands.records(compute, form);
                let linear = LinearGrouped { rows, n, k, x, format: form, records, bias, out };
                self.kernels.linear_grouped(linear);
            }
        }
        if let (Op::Q | Op::K, Some(rope)) = (compute.op, &config.rope) {
            self.list_positions(operands, compute);
            let heads = if compute.op == Op::Q { config.num_heads } else { config.num_kv_heads };
            let out = operands.output::<T>(compute, rows);
            let tables = RopeTables {
                inverse_frequencies: &self.inverse_frequencies,
                rotary_dim: rope.rotary_dim(config.head_dim),
                attention_factor: rope.attention_factor(),
                table_of_row: None,
            };
            self.kernels.rope(rows, heads, config.head_dim, &self.positions, &tables, out);
        }
    }
}
