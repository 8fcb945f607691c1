//! Execution of one operation of the model's table with this lane's kernels.

use kernels::{
    AttentionUnit, Element, IndexedScratch, Kernels, PoolOptions, ScratchLimits, Selection,
    StateRows, ThreadPool, Variant,
};
use model::config::{Dtype, ModelConfig};
use model::delta::DeltaNet;
use model::mamba::Mamba;
use model::ops::{ElementType, Op, Value};
use model::quantized_format::WeightFormat;
use program::ir::{Compute, ProgramId};
use program::map::ComputeDevice;
use program::plan::Plan;
use protocol::grammar_source::GrammarSource;
use protocol::table::StepTable;

use super::compressed::Compressed;
use super::expert_cache::PlaceScratch;
use super::expert_latent::ExpertLatent;
use super::join_hidden::JoinHidden;
use super::operands::Operands;
use super::per_layer::PerLayer;
use super::positions::Positions;
use super::row_logits::RowLogits;
use super::sampled_states::SampledStates;
use super::streams::Streams;
use super::{
    attention, delta, experts, indexed, latent, linear, sample, sparse_attention, streams,
};
use crate::error::WorkerError;
use crate::hidden_store::SharedHiddenStore;
use crate::lane_executor::WorkAmount;
use crate::memory::View;
use crate::partial_keys;
use crate::shared_drafter::SharedDrafter;
use crate::work_items::{SequenceRows, attends_deferred, logits_rows, row_counts, sequences};

/// Kernels and scratch of a lane that runs operations, sized by the plan's maxima.
#[derive(Debug)]
pub struct ComputeState {
    kernels: Kernels,
    positions: Positions,
    router: experts::Router,
    places: PlaceScratch,
    per_layer: PerLayer,
    expert_latent: ExpertLatent,
    join_hidden: JoinHidden,
    streams: Streams,
    tokens: Vec<u32>,
    last_rows: Vec<u32>,
    units: Vec<AttentionUnit>,
    /// Pages of the units' caches.
    pages: Vec<u32>,
    /// Sequences of a layer with a state.
    states: Vec<StateRows>,
    sample: sample::SampleState,
    /// Present if new tokens select positions.
    selection: Option<Selection>,
    /// Present if latent attention has indexers.
    indexed: Option<IndexedScratch>,
    /// Present if layers have compressed entries.
    compressed: Option<Compressed>,
}

impl ComputeState {
    /// Creates kernels of `variant` with threads as specified by `pool`, and scratch for everything
    /// that `plan` can require.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn new(
        plan: &Plan,
        variant: Variant,
        pool: &PoolOptions,
        grammars: Option<&GrammarSource>,
    ) -> Result<ComputeState, WorkerError> {
        let (config, shape) = (&plan.config, &plan.shape);
        let rows = shape.stream_rows().max(usize::from(shape.batch_size));
        let sequences = usize::from(shape.stream_sequences().max(shape.batch_size));
        let inputs = [
            config.residual_size(),
            config.max_of_layers(ModelConfig::q_size),
            config.max_of_layers(ModelConfig::out_input_size),
            if config.features.hidden_states.are_joined() { 2 * config.hidden_size } else { 0 },
            config.features.per_layer_inputs.map_or(0, |inputs| inputs.size),
            config.query_rank().unwrap_or(0),
            config.max_ffn_size(),
            config.expert_row_size(),
            config.delta.as_ref().map_or(0, DeltaNet::value_size),
            config.delta.and_then(|delta| delta.decay_rank()).unwrap_or(0),
            config.mamba.as_ref().map_or(0, Mamba::inner_size),
        ];
        let context = shape.max_context as usize;
        let logits_rows = plan.programs.iter().map(|program| program.shape.logits_rows as usize);
        let logits_rows = logits_rows.max().unwrap_or(0);
        let pages = plan.table.pages as usize * usize::from(shape.batch_size);
        let limits = ScratchLimits {
            rows,
            linear_inputs: inputs.into_iter().max().unwrap_or(0),
            positions: config.max_of_layers(|model| model.max_attended(context)).max(context),
            group: config
                .max_of_layers(ModelConfig::group_size)
                .max(config.features.indexer.map_or(0, |indexer| indexer.heads)),
            head_dim: config
                .max_of_layers(|model| model.head_dim)
                .max(config.latent.map_or(0, |latent| latent.query_dim()))
                .max(config.features.indexer.map_or(0, |indexer| indexer.head_dim)),
        };
        Ok(ComputeState {
            kernels: Kernels::with_pool(
                variant,
                ThreadPool::with_options(pool).map_err(WorkerError::Thread)?,
                limits,
            )
            .with_activations(plan.map.weight_formats.activations)
            .with_experts(experts::limits(config, rows))
            .with_head_linears(latent::inputs(config)),
            positions: Positions::new(config, rows, sequences),
            router: experts::Router::new(plan, rows),
            places: PlaceScratch::new(plan),
            per_layer: PerLayer::new(config, rows),
            expert_latent: ExpertLatent::new(config, rows),
            join_hidden: JoinHidden::new(config, rows),
            streams: Streams::new(config, rows, logits_rows),
            tokens: Vec::with_capacity(rows),
            last_rows: Vec::with_capacity(logits_rows),
            units: Vec::with_capacity(sequences * config.max_of_layers(|model| model.num_kv_heads)),
            pages: Vec::with_capacity(pages),
            states: Vec::with_capacity(if config.layers.has_states() { sequences } else { 0 }),
            sample: sample::SampleState::new(plan, grammars, logits_rows, pool.threads)?,
            selection: partial_keys::selection(plan, pool.threads, &limits),
            indexed: indexed::scratch(config, pool.threads, &limits),
            compressed: Compressed::new(config, pool.threads, &limits, [sequences, pages]),
        })
    }

    /// Makes routers select experts at random, regardless of the rows' contents.
    #[must_use]
    pub(crate) fn with_random_routing(mut self) -> ComputeState {
        self.router = self.router.with_random_routing();
        self
    }

    /// Sets the source of drafted tokens of a lane that samples.
    #[must_use]
    pub(crate) fn with_drafter(mut self, drafter: SharedDrafter) -> ComputeState {
        self.sample.set_drafter(drafter);
        self
    }

    /// Sets the hidden states that are joined with embeddings.
    #[must_use]
    pub(crate) fn with_hidden(mut self, store: SharedHiddenStore) -> ComputeState {
        self.join_hidden.set_store(store);
        self
    }

    /// Runs one operation in the run's dtype `T`.
    pub(super) fn run<T: Element>(
        &mut self,
        operands: Operands<'_>,
        compute: &Compute,
    ) -> WorkAmount {
        let rows = rows_of(&operands, compute);
        let weight_bytes = self.weight_bytes::<T>(&operands, compute, rows);
        if compute.op == Op::Sample {
            let logits = operands.rows(compute.inputs[0], Value::Logits, rows);
            let logits = RowLogits::Values(logits);
            let hidden = SampledStates::<T>::read(&operands, compute, rows);
            let Self { kernels, sample, .. } = self;
            sample::sample_batch(kernels, &operands, compute.at, logits, hidden, sample);
            return WorkAmount { bytes: 0, rows: rows as u32 };
        }
        if rows == 0 {
            return WorkAmount::default();
        }
        let cache_bytes = match compute.op {
            op if op.updates_state() => {
                let Self { kernels, states, .. } = self;
                delta::run::<T>(kernels, states, &operands, compute, rows)
            }
            op if op.is_attention() => self.attend::<T>(&operands, compute, rows),
            _ => {
                self.run_rows::<T>(&operands, compute, rows);
                0
            }
        };
        WorkAmount { bytes: weight_bytes + cache_bytes, rows: rows as u32 }
    }

    /// Runs an operation that reads cached positions, and returns the number of bytes read.
    fn attend<T: Element>(
        &mut self,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) -> u64 {
        let Self { kernels, positions, units, pages, selection, indexed, compressed, .. } = self;
        let has_entries = operands.config.compression().is_some();
        if let Some(compressed) = compressed.as_mut().filter(|_| has_entries) {
            let Some(tables) = positions.tables(operands, compute) else {
                panic!("layers with entries have a rope")
            };
            return compressed.run::<T>(kernels, operands, compute, tables, rows);
        }
        match (selection, indexed) {
            (Some(selection), _) => sparse_attention::run::<T>(
                kernels, selection, units, pages, operands, compute, rows,
            ),
            (None, Some(scratch)) => {
                indexed::run::<T>(kernels, scratch, units, pages, operands, compute, rows)
            }
            (None, None) => attention::run::<T>(kernels, units, pages, operands, compute, rows),
        }
    }

    /// Runs an operation whose rows depend on no other rows.
    fn run_rows<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        match compute.op {
            Op::Embed => self.embed::<T>(operands, compute, rows),
            Op::PerLayerEmbed => {
                self.list_tokens(operands, compute);
                let Self { kernels, per_layer, tokens, .. } = self;
                per_layer.embed::<T>(kernels, operands, compute, tokens);
            }
            Op::JoinHidden => {
                let Self { kernels, join_hidden, .. } = self;
                join_hidden.run::<T>(kernels, operands, compute, rows);
            }
            Op::PerLayerGate => {
                let Self { kernels, per_layer, .. } = self;
                per_layer.gate::<T>(kernels, operands, compute, rows);
            }
            Op::Norm0 | Op::Norm1 | Op::FinalNorm | Op::RouterNorm | Op::ExpertNorm => {
                self.norm::<T>(operands, compute, rows);
            }
            Op::SumNorm => self.sum_norm::<T>(operands, compute, rows),
            Op::PostNorm0 | Op::PostNorm1 | Op::PerLayerNorm => {
                self.post_norm::<T>(operands, compute, rows);
            }
            Op::Router => {
                if operands.config.routes_by_token() {
                    self.list_tokens(operands, compute);
                }
                let Self { kernels, router, tokens, .. } = self;
                router.route::<T>(kernels, operands, compute, rows, tokens);
            }
            Op::ExpertGate | Op::ExpertUp | Op::ExpertDown => {
                let Self { kernels, places, .. } = self;
                experts::run::<T>(kernels, operands, compute, rows, places);
            }
            Op::ExpertCombine => experts::combine(&self.kernels, operands, compute, rows),
            Op::ExpertLatentUp => {
                let Self { kernels, expert_latent, .. } = self;
                expert_latent.up::<T>(kernels, operands, compute, rows);
            }
            Op::QAbsorb | Op::VUp => latent::run::<T>(&self.kernels, operands, compute, rows),
            Op::OutDown => latent::groups::<T>(&self.kernels, operands, compute, rows),
            Op::Unrotate => {
                self.positions.unrotate::<T>(&self.kernels, operands, compute, rows);
            }
            Op::StreamMap0 | Op::StreamMap1 => {
                streams::map(&self.kernels, operands, compute, rows);
            }
            Op::StreamAdd0 | Op::StreamAdd1 => {
                streams::add::<T>(&self.kernels, operands, compute, rows);
            }
            Op::SharedGate => self.shared_gate::<T>(operands, compute, rows),
            _ => {
                linear::run::<T>(&self.kernels, operands, compute, rows);
                if matches!(compute.op, Op::Q | Op::K | Op::IndexQuery) {
                    self.positions.rotate::<T>(&self.kernels, operands, compute, rows);
                }
            }
        }
    }

    /// Samples from logits that a device has computed.
    pub(crate) fn sample(
        &mut self,
        plan: &Plan,
        view: &View,
        table: &StepTable,
        program: ProgramId,
        compute: &Compute,
        from: SampledRows<'_>,
    ) {
        let device = ComputeDevice::Gpu;
        let operands =
            Operands { plan, config: &plan.config, view, table, program, device, skew: None };
        let Self { kernels, sample, .. } = self;
        let SampledRows { logits, hidden } = from;
        match plan.shape.dtype {
            Dtype::Bf16 => {
                let pooled = hidden.map_or(&[][..], bytemuck::cast_slice::<u8, half::bf16>);
                let hidden = SampledStates { pooled, residual: &[] };
                sample::sample_batch(kernels, &operands, compute.at, logits, hidden, sample);
            }
            Dtype::F32 => {
                let pooled = hidden.map_or(&[][..], bytemuck::cast_slice::<u8, f32>);
                let hidden = SampledStates { pooled, residual: &[] };
                sample::sample_batch(kernels, &operands, compute.at, logits, hidden, sample);
            }
        }
    }

    fn weight_bytes<T>(&self, operands: &Operands<'_>, compute: &Compute, rows: usize) -> u64 {
        let config = operands.config;
        let bytes = match compute.op {
            _ if rows == 0 => 0,
            Op::Embed => rows * config.hidden_size * size_of::<T>() * compute.weights.len(),
            op => op.weight_bytes_in(config, operands.plan.shape.dtype, operands.format(compute)),
        };
        let piece = compute.chunk.filter(|_| !compute.op.is_attention());
        let bytes = bytes / piece.map_or(1, |piece| usize::from(piece.of));
        bytes as u64
    }

    /// Lists the tokens of an instruction's rows.
    fn list_tokens(&mut self, operands: &Operands<'_>, compute: &Compute) {
        let Operands { table, program, .. } = *operands;
        let batch = usize::from(compute.at.batch);
        self.tokens.clear();
        for SequenceRows { item, .. } in sequences(table, program, compute.at) {
            let token = |position| table.token(batch, item.slot, position);
            self.tokens.extend((item.first..item.first + item.rows).map(token));
        }
    }

    fn embed<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        self.list_tokens(operands, compute);
        let (config, out) = (operands.config, operands.output::<f32>(compute, rows));
        if config.features.streams.is_none() {
            self.embed_rows::<T>(operands, compute, out);
            return;
        }
        let mut streams = std::mem::take(&mut self.streams);
        self.embed_rows::<T>(operands, compute, streams.embedded(config, rows));
        streams.spread(config, out);
        self.streams = streams;
    }

    /// Looks up the embeddings of the listed tokens.
    fn embed_rows<T: Element>(
        &mut self,
        operands: &Operands<'_>,
        compute: &Compute,
        out: &mut [f32],
    ) {
        let config = operands.config;
        let factor = config.embedding_scale(operands.plan.shape.dtype);
        let matrix = match operands.format(compute) {
            WeightFormat::Plain => operands.matrix::<T>(compute),
            WeightFormat::Grouped(form) => {
                assert!(
                    config.learned_positions.is_none(),
                    "only files of models with rope hold such a table"
                );
                let records = operands.records(compute, form);
                self.kernels.embed_grouped(&self.tokens, form, records, factor, out);
                return;
            }
        };
        let Some(offset) = config.learned_positions else {
            self.kernels.embed(&self.tokens, matrix, None, factor, out);
            return;
        };
        let count = config.learned_position_rows() * config.hidden_size;
        let learned = operands.view.read::<T>(compute.weights[1].buffer, 0, count);
        let positions = Some((self.positions.list(operands, compute), learned, offset));
        self.kernels.embed(&self.tokens, matrix, positions, factor, out);
    }

    fn norm<T: Element>(&mut self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let config = operands.config;
        let (hidden, eps) = (config.hidden_size, config.norm_eps);
        let mut input_rows = rows;
        self.last_rows.clear();
        let index = if compute.op == Op::FinalNorm {
            let Operands { table, program, .. } = *operands;
            let with_logits = logits_rows(table, program, compute.at);
            self.last_rows.extend(with_logits.map(|found| found.row as u32));
            input_rows = row_counts(table, program, compute.at).1;
            Some(self.last_rows.as_slice())
        } else {
            None
        };
        let x = operands.rows::<f32>(compute.inputs[0], Value::Hidden, input_rows);
        if config.features.streams.is_some() {
            let Self { kernels, streams, .. } = self;
            match index {
                Some(index) => streams.final_norm::<T>(kernels, operands, compute, x, index),
                None => streams.norm::<T>(kernels, operands, compute, rows),
            }
            return;
        }
        let out = operands.output::<T>(compute, rows);
        let Some(gain) = operands.vector(compute, 0) else {
            self.kernels.round(&x[..rows * hidden], out);
            return;
        };
        match operands.vector(compute, 1) {
            Some(bias) => self.kernels.layer_norm(rows, hidden, x, gain, bias, eps, index, out),
            None => self.kernels.rms_norm(rows, hidden, x, gain, eps, index, out),
        }
    }

    fn shared_gate<T: Element>(&self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let input = operands.rows::<T>(compute.inputs[0], Value::Normed1, rows);
        let x = operands.rows::<T>(compute.inputs[1], Value::Ffn, rows);
        let Some(weight) = operands.vector(compute, 0) else { panic!("a gate has weights") };
        let out = operands.output::<T>(compute, rows);
        self.kernels.shared_gate(rows, input, weight, x, out);
    }

    fn post_norm<T: Element>(&self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let config = operands.config;
        let value = compute.op.reads(config)[0];
        let Some(gain) = operands.vector(compute, 0) else { panic!("a norm has a gain") };
        let (input, out) = (compute.inputs[0], operands.output::<f32>(compute, rows));
        let eps = config.norm_eps;
        match value.element() {
            ElementType::Compute => {
                let x = operands.rows::<T>(input, value, rows);
                self.kernels.add_rms_norm(rows, x, gain, eps, out);
            }
            ElementType::F32 => {
                let x = operands.rows::<f32>(input, value, rows);
                self.kernels.add_rms_norm(rows, x, gain, eps, out);
            }
        }
        if let Some(factor) = operands.vector(compute, 1) {
            self.kernels.scale(factor[0], out);
        }
    }

    /// Runs `SumNorm`.
    fn sum_norm<T: Element>(&self, operands: &Operands<'_>, compute: &Compute, rows: usize) {
        let gain = |index| operands.vector(compute, index).expect("each of two norms has a gain");
        let dense = operands.rows::<T>(compute.inputs[0], Value::Projected1, rows);
        let experts = operands.rows::<f32>(compute.inputs[1], Value::ExpertSum, rows);
        let (eps, out) = (operands.config.norm_eps, operands.output::<f32>(compute, rows));
        out.fill(0.0);
        self.kernels.add_rms_norm(rows, dense, gain(0), eps, out);
        self.kernels.add_rms_norm(rows, experts, gain(1), eps, out);
    }
}

/// Rows that a device has computed for a sample, in host memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampledRows<'a> {
    pub(crate) logits: RowLogits<'a>,
    /// Bytes of `[rows, hidden_size]` in the run's dtype, aligned to its elements; `None` if no row
    /// is pooled.
    pub(crate) hidden: Option<&'a [u8]>,
}

/// Returns the number of rows of an operation's values: the rows whose logits are computed, a row
/// per slot for kept values, or else the rows of the stream.
fn rows_of(operands: &Operands<'_>, compute: &Compute) -> usize {
    let Operands { table, program, .. } = *operands;
    let (found, rows) = row_counts(table, program, compute.at);
    match compute.op {
        Op::FinalNorm | Op::Head | Op::Sample => found,
        _ if attends_deferred(table, program, compute.chunk) => table.batch_size(),
        _ => rows,
    }
}
