//! A table's layer as real programs: a model whose layer is that of the table, compiled by the real
//! compiler, with the table's times for every instruction. The coordinator's timed emulation runs
//! the programs in the workers and compares them with the simulation of the same programs and
//! times.
//!
//! The model is as small as possible: its buffers are never accessed. A plan of a described machine
//! becomes such programs too, with the times of its own instructions ([`TimedPlan`]).

mod bounds;
mod described;
mod error;
mod instruction_times;
mod layer;
mod steady;
#[cfg(test)]
mod tests;

pub use described::TimedPlan;
pub use error::TimedError;
pub use instruction_times::InstructionTimes;
pub use steady::{SteadyLayer, SteadyStep, steady, steady_step};

use model::config::{Activation, Dtype, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::layers::{LayerKind, Layers};
use model::quantized_format::{Grouped, WeightFormat};
use program::compile::{CompileError, compile};
use program::formats::{KvFormat, WeightFormats};
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use program::validate::validate;

use crate::layer::closed_form::LayerCandidate;
use crate::layer::search::{LayerSearchResult, search};
use crate::layer::table::OperationTable;
use crate::policy::{DefaultTiers, Policy, device_map};
use crate::split::Split;
use bounds::{GEN_LEN_MAX, LAYERS_MAX, TIME_MAX_MS};
use layer::TableLayer;

/// Programs, and the costs of their instructions.
#[derive(Debug, Clone)]
pub struct TimedTablePlan {
    pub plan: Plan,
    pub times: InstructionTimes,
    /// The result of the table's search.
    pub search_result: LayerSearchResult,
}

impl TimedTablePlan {
    /// Searches the table, and compiles and proves programs of `layers` layers in the best
    /// placement, for sequences with a prompt of one token and `gen_len` new tokens.
    ///
    /// # Errors
    /// A table whose operations are not those of a known layer, or times that no run would take.
    pub fn from_table(
        table: &OperationTable,
        layers: usize,
        gen_len: u32,
    ) -> Result<TimedTablePlan, TimedError> {
        if !(1..=LAYERS_MAX).contains(&layers) {
            return Err(TimedError::Layers { layers });
        }
        if !(1..=GEN_LEN_MAX).contains(&gen_len) {
            return Err(TimedError::GenLen { gen_len });
        }
        let search_result = search(table)?;
        let layer = TableLayer::parse(table)?;
        check_times(table)?;
        let candidate = &search_result.best.candidate;
        if !candidate.nvme.is_empty() {
            let names = candidate.nvme.iter().map(|op| table.ops[*op].name.as_str());
            return Err(TimedError::Nvme { names: names.collect::<Vec<_>>().join(", ") });
        }
        let plan = plan(&layer, table.batches, candidate, layers, gen_len)?;
        validate(&plan)?;
        let times = InstructionTimes::new(&plan, &layer, table, candidate.compressed);
        Ok(TimedTablePlan { plan, times, search_result })
    }
}

fn check_times(table: &OperationTable) -> Result<(), TimedError> {
    for op in &table.ops {
        let times = [
            ("cpu_ms", op.cpu_ms),
            ("gpu_ms", op.gpu_ms),
            ("h2d_ms", op.h2d_ms),
            ("h2d_compressed_ms", op.h2d_compressed_ms),
            ("decompress_ms", op.decompress_ms),
        ];
        if let Some((field, value_ms)) = times.into_iter().find(|(_, ms)| *ms > TIME_MAX_MS) {
            return Err(TimedError::TooLong { name: op.name.clone(), field, value_ms });
        }
    }
    Ok(())
}

fn plan(
    layer: &TableLayer,
    batches: u32,
    candidate: &LayerCandidate,
    layers: usize,
    gen_len: u32,
) -> Result<Plan, CompileError> {
    let max_context = gen_len + 1;
    let config = config(layer, layers, max_context as usize);
    let (start, end) = layer.interval(candidate.interval.0, candidate.interval.1);
    let policy = match end - start {
        0 => Policy::CpuOnly,
        count if count == layer.entries.len() => Policy::GpuOnly,
        _ => Policy::TwoSplit { split: Split { start, end }, chunking: layer.chunking },
    };
    let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    // Tables contain separate operations only.
    let mut map = device_map(&policy, &config, false, tiers);
    // As many slots as the table's timeline has: chunks of two batches.
    let parts = layer.score_parts(start..end);
    map.kv_slots = map.kv_slots.max(2 * parts);
    if candidate.compressed {
        // The table's device decompresses, so the programs use a format that ours decompresses too.
        let widened = WeightFormat::Grouped(Grouped::GGUF_Q2_K);
        map.weight_formats = WeightFormats::with_layers(&config, widened);
        map.kv_format = KvFormat::Four;
    }
    let shape = RunShape {
        // Tables are validated to have no more batches than the type can hold.
        batches: batches as u16,
        batch_size: 1,
        max_prompt: 1,
        shared_prompt: 0,
        max_context,
        max_new: gen_len,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: Dtype::Bf16,
    };
    compile(&config, &shape, &map)
}

/// Returns the smallest model with such a layer: every head is a unit, so that each chunk can have
/// one.
fn config(layer: &TableLayer, layers: usize, positions: usize) -> ModelConfig {
    const HEADS: usize = 64;
    const HEAD_DIM: usize = 2;
    let llama = layer.family == Family::Llama;
    ModelConfig {
        name: "table".to_owned(),
        family: layer.family,
        num_layers: layers,
        hidden_size: HEADS * HEAD_DIM,
        num_heads: HEADS,
        num_kv_heads: HEADS,
        head_dim: HEAD_DIM,
        ffn_size: HEADS * HEAD_DIM,
        vocab_size: 2,
        max_positions: positions,
        norm_eps: 1e-5,
        activation: if llama { Activation::Silu } else { Activation::Relu },
        learned_positions: (!llama).then_some(2),
        layers: Layers::uniform(LayerKind::dense(
            llama.then_some(Rope::new(10_000.0, RopeScaling::None)),
        )),
        experts: None,
        qkv_bias: !llama,
        out_bias: !llama,
        ffn_bias: !llama,
        tied_embeddings: true,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    }
}
