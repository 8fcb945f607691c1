//! The request that a run makes to the planner.

use batch::workload::JobWorkload;
use engine::memory;
use grammar::GrammarSet;
use model::config::Rope;
use planner::budget::{MemoryLimits, PlacementRequest, PlanError, Storage};
use planner::policy::{Formats, Placement};
use protocol::prefix_sharing::MIN_TOKENS;
use workers::device::{has_blas, scratch};

use super::auto_batches::MAX_BATCH_SIZE;
use crate::cuda_device;
use crate::request::PlacementChoice;
use crate::session::Session;
use crate::values::{Batches, BatchesChoice};

/// Maximum batch size that is chosen if `--batches` is not specified.
pub const DEFAULT_MAX_BATCH: u16 = 32;

/// Returns the bytes of host memory that a run may use.
pub(crate) fn dram_bytes(session: &Session<'_>) -> u64 {
    session.options.dram_bytes.unwrap_or_else(memory::available_bytes)
}

/// Returns the bytes of that memory that are reserved for structured output.
pub fn grammar_bytes(session: &Session<'_>) -> u64 {
    GrammarSet::share_bytes(dram_bytes(session), session.model.config.vocab_size)
}

/// Returns the memory that the plan of a run may use: without the share for structured output if
/// that is requested.
pub(crate) fn limits(session: &Session<'_>, demand: JobWorkload) -> MemoryLimits {
    let grammar_bytes = if demand.has_grammars { grammar_bytes(session) } else { 0 };
    MemoryLimits {
        dram_bytes: dram_bytes(session).saturating_sub(grammar_bytes),
        vram_bytes: session.options.vram_bytes,
        vram_is_dram: !cuda_device::is_cuda(session.options.device),
        slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
        device_scratch: cuda_device::is_cuda(session.options.device).then(|| scratch(has_blas())),
    }
}

/// Returns the specified batches, or smaller ones that the given number of sequences fills: larger
/// ones would only take memory. If attention is split into chunks, at least one unit (a KV head of
/// a sequence) per chunk remains.
pub fn shrink_batches(session: &Session<'_>, requested: Batches, sequences: usize) -> Batches {
    let Batches { count, size } = requested.clamp_to_sequences(sequences);
    let min_size = match &session.options.placement {
        PlacementChoice::Split { chunking: Some(chunking), .. } => {
            let chunks = chunking.of_attention().map_or(1, |chunking| chunking.chunks);
            usize::from(chunks).div_ceil(session.model.config.num_kv_heads)
        }
        _ => 1,
    };
    let min_size = u16::try_from(min_size).unwrap_or(u16::MAX);
    Batches { count, size: size.max(min_size).min(requested.size) }
}

/// Returns the number of tokens with which all prompts begin if these are computed together; 0
/// otherwise. If rope depends on the length of a sequence, prompts need not have equal keys for
/// these tokens; recurrent states cannot be shared.
fn shared_prompt(session: &Session<'_>, demand: JobWorkload) -> u32 {
    let config = &session.model.config;
    let shared = demand.shared_prompt;
    let ropes = config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
    let by_length = ropes.into_iter().any(Rope::depends_on_length);
    let shares = session.options.shares_prompts && !by_length && !config.layers.has_states();
    if shared < MIN_TOKENS || !shares { 0 } else { shared as u32 }
}

/// Returns the planner's request for one placement of the run.
pub(crate) fn plan_request<'a>(
    session: &'a Session<'a>,
    demand: JobWorkload,
    formats: &'a Formats,
    limits: &'a MemoryLimits,
    storage: Option<&'a Storage>,
    placement: &'a Placement,
) -> PlacementRequest<'a> {
    PlacementRequest {
        config: &session.model.config,
        placement,
        formats,
        fuse_attention: session.options.fuse_attention,
        dtype: session.options.dtype,
        max_prompt: demand.max_prompt as u32,
        shared_prompt: shared_prompt(session, demand),
        max_context: demand.max_context as u32,
        max_new: demand.max_new,
        logprobs: demand.logprobs,
        prefill_chunk: session.options.prefill_chunk,
        limits,
        storage,
        routing: session.options.routing.as_deref(),
    }
}

/// Returns the specified batches, or one batch of the largest size that fits, up to a default.
///
/// # Errors
/// A map that cannot be compiled.
pub(crate) fn resolve_batches(
    session: &Session<'_>,
    demand: JobWorkload,
    request: &PlacementRequest<'_>,
) -> Result<Batches, PlanError> {
    let max_size = match session.batches {
        Some(BatchesChoice::Fixed(batches)) => return Ok(batches),
        Some(BatchesChoice::Auto) => MAX_BATCH_SIZE,
        None => DEFAULT_MAX_BATCH,
    };
    let max_size = demand.sequences.clamp(1, usize::from(max_size)) as u16;
    Ok(Batches { count: 1, size: request.largest_batch(1, max_size)?.unwrap_or(1) })
}
