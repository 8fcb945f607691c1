//! One operation of the model's table on this lane's kernels.

use bytemuck::Pod;
use kernels::{
    Element, Kernels, Linear, LinearGrouped, LinearOut, Pool, PoolOptions, ScratchLimits, Unit,
    Variant,
};
use model::compressed::{Grouped, WeightFormat};
use model::config::Activation;
use model::ops::{Op, Value};
use program::formats::decompressed;
use program::ir::{Compute, Phase, Region};
use program::map::Device;
use program::plan::{Plan, Weights};
use program::step_table::Field;

use super::{Work, attention, sample};
use crate::error::WorkerError;
use crate::memory::View;
use crate::rows::{counts, sequences};
use crate::table::StepTable;

/// Kernels and scratch of a lane that runs operations, sized by the plan's maxima.
#[derive(Debug)]
pub struct ComputeState {
    pub(super) kernels: Kernels,
    inverse_frequencies: Vec<f32>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    last_rows: Vec<u32>,
    pub(super) units: Vec<Unit>,
    sample: sample::SampleState,
}

/// Where a compute instruction finds its operands.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) plan: &'a Plan,
    pub(super) view: &'a View,
    pub(super) table: &'a StepTable,
    pub(super) phase: Phase,
    pub(super) device: Device,
}

impl<'a> Operands<'a> {
    /// The first `rows` rows of an input or output that is rows, for reading.
    pub(super) fn rows<T: Pod>(&self, region: Region, value: Value, rows: usize) -> &'a [T] {
        let elements = value.row_elements(&self.plan.config).unwrap_or(0);
        self.view.read(region.buffer, 0, rows * elements)
    }

    /// The first `rows` rows of the output.
    pub(super) fn output<T: Pod>(&self, compute: &Compute, rows: usize) -> &'a mut [T] {
        let elements = compute
            .op
            .writes()
            .and_then(|value| value.row_elements(&self.plan.config))
            .unwrap_or(0);
        self.view.write(output_region(compute).buffer, 0, rows * elements)
    }

    /// Shape of the operation's matrix.
    fn matrix_shape(&self, compute: &Compute) -> (usize, usize) {
        let shape = compute.op.weights(&self.plan.config).and_then(|weights| weights.matrix);
        let Some(shape) = shape else { panic!("{:?} has no matrix", compute.op) };
        shape
    }

    /// The operation's matrix, where it is kept in the run's dtype.
    fn matrix<T: Pod>(&self, compute: &Compute) -> &'a [T] {
        let (n, k) = self.matrix_shape(compute);
        self.view.read(compute.weights[0].buffer, 0, n * k)
    }

    /// The records of the operation's matrix in a grouped form.
    fn records(&self, compute: &Compute, form: Grouped) -> &'a [u8] {
        let (n, k) = self.matrix_shape(compute);
        self.view.read(compute.weights[0].buffer, 0, form.size_bytes(n, k))
    }

    /// The form of the matrix, as this lane's device reads it.
    fn format(&self, compute: &Compute) -> WeightFormat {
        let weights = Weights::of(compute.op, compute.at.layer);
        let stored = self.plan.map.weight_formats.of(&self.plan.config, weights);
        match (self.device, decompressed(stored)) {
            (Device::Gpu, Some(wide)) => WeightFormat::Grouped(wide),
            _ => stored,
        }
    }

    /// A vector behind the matrix: a bias, a gain.
    fn vector(&self, compute: &Compute, index: usize) -> Option<&'a [f32]> {
        let shape = compute.op.weights(&self.plan.config)?;
        let count = shape.vectors[index]?;
        let layout = shape.layout(self.plan.shape.dtype, self.format(compute));
        let offset = layout.vector_offsets[index];
        Some(self.view.read(compute.weights[0].buffer, offset, count))
    }
}

pub(super) fn output_region(compute: &Compute) -> Region {
    let Some(region) = compute.output else { panic!("{:?} writes no value", compute.op) };
    region
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
    ) -> Result<ComputeState, WorkerError> {
        let (config, shape) = (&plan.config, &plan.shape);
        let rows = shape.micro_rows().max(usize::from(shape.batch_size));
        let sequences = usize::from(shape.micro_sequences.max(shape.batch_size));
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
            inverse_frequencies: config
                .rope
                .as_ref()
                .map(|rope| rope.inverse_frequencies(config.head_dim))
                .unwrap_or_default(),
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            last_rows: Vec::with_capacity(sequences),
            units: Vec::with_capacity(sequences * config.num_kv_heads),
            sample: sample::SampleState::new(config.vocab_size, sequences, pool.threads),
        })
    }

    /// Runs one operation in the run's dtype `T`.
    pub(super) fn run<T: Element>(&mut self, operands: Operands<'_>, compute: &Compute) -> Work {
        let (found, rows) = counts(operands.table, operands.phase, compute.at);
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
            op if op.is_attention() => attention::run::<T>(self, &operands, compute, rows),
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
        phase: Phase,
        compute: &Compute,
        logits: &[f32],
    ) {
        let operands = Operands { plan, view, table, phase, device: Device::Gpu };
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
        for found in sequences(operands.table, operands.phase, compute.at) {
            let first = found.past as u32;
            self.positions.extend(first..first + found.rows as u32);
        }
    }

    fn embed<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let Operands { plan, table, phase, .. } = *operands;
        let batch = usize::from(compute.at.batch);
        self.tokens.clear();
        for found in sequences(table, phase, compute.at) {
            match phase {
                Phase::Prefill => self
                    .tokens
                    .extend((0..found.rows).map(|i| table.prompt_token(batch, found.sequence, i))),
                Phase::Decode => self.tokens.push(table.field(batch, found.sequence, Field::Token)),
            }
        }
        let out = operands.output::<f32>(compute, rows);
        let config = &plan.config;
        let matrix = match operands.format(compute) {
            WeightFormat::Plain => operands.matrix::<T>(compute),
            WeightFormat::Grouped(form) => {
                assert!(config.rope.is_some(), "only files of models with rope hold such a table");
                let records = operands.records(compute, form);
                self.kernels.embed_grouped(&self.tokens, form, records, out);
                return;
            }
        };
        if config.rope.is_some() {
            self.kernels.embed(&self.tokens, matrix, None, out);
            return;
        }
        self.list_positions(operands, compute);
        let count = (config.max_positions + config.position_offset) * config.hidden_size;
        let learned = operands.view.read::<T>(compute.weights[1].buffer, 0, count);
        let positions = Some((self.positions.as_slice(), learned, config.position_offset));
        self.kernels.embed(&self.tokens, matrix, positions, out);
    }

    fn norm<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let config = &operands.plan.config;
        let (hidden, eps) = (config.hidden_size, config.norm_eps);
        let mut input_rows = rows;
        self.last_rows.clear();
        let index = if compute.op == Op::FinalNorm {
            for found in sequences(operands.table, operands.phase, compute.at) {
                self.last_rows.push((found.row0 + found.rows - 1) as u32);
                input_rows = found.row0 + found.rows;
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
                let linear = LinearGrouped { rows, n, k, x, form, records, bias, out };
                self.kernels.linear_grouped(linear);
            }
        }
        if matches!(compute.op, Op::Q | Op::K) && config.rope.is_some() {
            self.list_positions(operands, compute);
            let heads = if compute.op == Op::Q { config.num_heads } else { config.num_kv_heads };
            let out = operands.output::<T>(compute, rows);
            self.kernels.rope(
                rows,
                heads,
                config.head_dim,
                &self.positions,
                &self.inverse_frequencies,
                out,
            );
        }
    }
}
