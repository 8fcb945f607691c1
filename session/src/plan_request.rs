//! The request that a run makes to the planner.

use batch::workload::JobWorkload;
use engine::memory;
use grammar::GrammarSet;
use model::config::{ModelConfig, Rope};
use planner::budget::{MemoryLimits, PlacementRequest, PlanError, Storage};
use planner::policy::{Formats, Placement};
use protocol::prefix_sharing::MIN_TOKENS;
use workers::device::{has_blas, scratch};

use super::auto_batches::MAX_BATCH_SIZE;
use super::model::ModelHandle;
use crate::cuda_device;
use crate::request::{PlacementChoice, RunRequest};
use crate::values::{Batches, BatchesChoice};

/// Maximum batch size that is chosen if `--batches` is not specified.
pub const DEFAULT_MAX_BATCH: u16 = 32;

/// Returns the bytes of host memory that a run may use.
fn dram_bytes(run: &RunRequest) -> u64 {
    run.dram_bytes.unwrap_or_else(memory::available_bytes)
}

/// Returns the bytes of that memory that are reserved for structured output.
pub fn grammar_bytes(run: &RunRequest, model: &ModelHandle) -> u64 {
    GrammarSet::share_bytes(dram_bytes(run), model.config.vocab_size)
}

/// Returns the memory that the plan of a run may use: without the share for structured output if
/// that is requested.
pub(crate) fn limits(run: &RunRequest, model: &ModelHandle, demand: JobWorkload) -> MemoryLimits {
    let grammar_bytes = if demand.has_grammars { grammar_bytes(run, model) } else { 0 };
    MemoryLimits {
        dram_bytes: dram_bytes(run).saturating_sub(grammar_bytes),
        vram_bytes: run.vram_bytes,
        vram_is_dram: !cuda_device::is_cuda(run.device),
        slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
        device_scratch: cuda_device::is_cuda(run.device).then(|| scratch(has_blas())),
    }
}

/// Returns the specified batches, or smaller ones that the given number of sequences fills: larger
/// ones would only take memory. If attention is split into chunks, at least one unit (a KV head of
/// a sequence) per chunk remains.
pub fn shrink_batches(
    run: &RunRequest,
    model: &ModelHandle,
    requested: Batches,
    sequences: usize,
) -> Batches {
    let Batches { count, size } = requested.clamp_to_sequences(sequences);
    let min_size = match &run.placement {
        PlacementChoice::Split { chunking: Some(chunking), .. } => {
            let chunks = chunking.of_attention().map_or(1, |chunking| chunking.chunks);
            usize::from(chunks).div_ceil(model.config.num_kv_heads)
        }
        _ => 1,
    };
    let min_size = u16::try_from(min_size).unwrap_or(u16::MAX);
    Batches { count, size: size.max(min_size).min(requested.size) }
}

/// Returns the number of tokens with which all prompts begin if these are computed together; 0
/// otherwise. If rope depends on the length of a sequence, prompts need not have equal keys for
/// these tokens; recurrent states cannot be shared.
fn shared_prompt(run: &RunRequest, config: &ModelConfig, demand: JobWorkload) -> u32 {
    let shared = demand.shared_prompt;
    let ropes = config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
    let by_length = ropes.into_iter().any(Rope::depends_on_length);
    let shares = run.shares_prompts && !by_length && !config.layers.has_states();
    if shared < MIN_TOKENS || !shares { 0 } else { shared as u32 }
}

/// Returns the planner's request for one placement of the run.
pub(crate) fn plan_request<'a>(
    run: &RunRequest,
    model: &'a ModelHandle,
    demand: JobWorkload,
    formats: &'a Formats,
    limits: &'a MemoryLimits,
    storage: Option<&'a Storage>,
    placement: &'a Placement,
) -> PlacementRequest<'a> {
    PlacementRequest {
        config: &model.config,
        placement,
        formats,
        fuse_attention: run.fuse_attention,
        dtype: run.dtype,
        max_prompt: demand.max_prompt as u32,
        shared_prompt: shared_prompt(run, &model.config, demand),
        max_context: demand.max_context as u32,
        max_new: demand.max_new,
        logprobs: demand.logprobs,
        prefill_chunk: run.prefill_chunk,
        limits,
        storage,
    }
}

/// Returns the specified batches, or one batch of the largest size that fits, up to a default.
///
/// # Errors
/// A map that cannot be compiled.
pub(crate) fn resolve_batches(
    run: &RunRequest,
    demand: JobWorkload,
    request: &PlacementRequest<'_>,
) -> Result<Batches, PlanError> {
    let max_size = match run.batches {
        Some(BatchesChoice::Fixed(batches)) => return Ok(batches),
        Some(BatchesChoice::Auto) => MAX_BATCH_SIZE,
        None => DEFAULT_MAX_BATCH,
    };
    let max_size = demand.sequences.clamp(1, usize::from(max_size)) as u16;
    Ok(Batches { count: 1, size: request.largest_batch(1, max_size)?.unwrap_or(1) })
}
