//! The request that a run makes to the planner.

use grammar::Grammars;
use model::config::{ModelConfig, Rope};
use planner::budget::{Limits, PlanError, Request, Storage};
use planner::policy::{Formats, Placement};

use super::auto_batches::SIZE_MAX;
use super::model::Opened;
use crate::cli::cuda;
use crate::cli::request::{PlacementChoice, Run};
use crate::cli::values::{Batches, BatchesChoice};
use crate::engine::memory;
use crate::job::demand::Demand;
use workers::device::{finds_blas, scratch};
use workers::shared::prefix_sharing::LEAST_TOKENS;

/// Maximum batch size that is chosen if `--batches` is not specified.
pub(crate) const DEFAULT_BATCH_MAX: u16 = 32;

/// Returns the bytes of host memory that a run may use.
fn dram_bytes(run: &Run) -> u64 {
    run.dram_bytes.unwrap_or_else(memory::available_bytes)
}

/// Returns the bytes of that memory that are reserved for structured output.
pub(crate) fn forms_bytes(run: &Run, opened: &Opened) -> u64 {
    Grammars::share_bytes(dram_bytes(run), opened.config.vocab_size)
}

/// Returns the memory that the plan of a run may use: without the share for structured output if
/// that is requested.
pub(crate) fn limits(run: &Run, opened: &Opened, demand: Demand) -> Limits {
    let forms_bytes = if demand.forms { forms_bytes(run, opened) } else { 0 };
    Limits {
        dram_bytes: dram_bytes(run).saturating_sub(forms_bytes),
        vram_bytes: run.vram_bytes,
        vram_is_dram: !cuda::is_cuda(run.device),
        far_bytes: Limits::NO_FAR,
        device_scratch: cuda::is_cuda(run.device).then(|| scratch(finds_blas())),
    }
}

/// Returns the specified batches, or smaller ones that the given number of sequences fills: larger
/// ones would only take memory. If attention is split into chunks, at least one unit (a KV head of
/// a sequence) per chunk remains.
pub(crate) fn filled(run: &Run, opened: &Opened, given: Batches, sequences: usize) -> Batches {
    let Batches { count, size } = given.no_larger(sequences);
    let least = match &run.placement {
        PlacementChoice::Split { chunking: Some(chunking), .. } => {
            let chunks = chunking.of_attention().map_or(1, |chunking| chunking.chunks);
            usize::from(chunks).div_ceil(opened.config.num_kv_heads)
        }
        _ => 1,
    };
    let least = u16::try_from(least).unwrap_or(u16::MAX);
    Batches { count, size: size.max(least).min(given.size) }
}

/// Returns the number of tokens with which all prompts begin if these are computed together; 0
/// otherwise. If rope depends on the length of a sequence, prompts need not have equal keys for
/// these tokens; recurrent states cannot be shared.
fn shared_prompt(run: &Run, config: &ModelConfig, demand: Demand) -> u32 {
    let shared = demand.shared_prompt;
    let ropes = config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
    let by_length = ropes.into_iter().any(Rope::is_by_length);
    let shares = run.shares_prompts && !by_length && !config.layers.have_states();
    if shared < LEAST_TOKENS || !shares { 0 } else { shared as u32 }
}

/// Returns the planner's request for one placement of the run.
pub(crate) fn request<'a>(
    run: &Run,
    opened: &'a Opened,
    demand: Demand,
    formats: &'a Formats,
    (limits, storage): (&'a Limits, Option<&'a Storage>),
    placement: &'a Placement,
) -> Request<'a> {
    Request {
        config: &opened.config,
        placement,
        formats,
        fuse_attention: run.fuse_attention,
        dtype: run.dtype,
        max_prompt: demand.max_prompt as u32,
        shared_prompt: shared_prompt(run, &opened.config, demand),
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
pub(crate) fn batches(
    run: &Run,
    demand: Demand,
    request: &Request<'_>,
) -> Result<Batches, PlanError> {
    let most = match run.batches {
        Some(BatchesChoice::Given(batches)) => return Ok(batches),
        Some(BatchesChoice::Auto) => SIZE_MAX,
        None => DEFAULT_BATCH_MAX,
    };
    let most = demand.sequences.clamp(1, usize::from(most)) as u16;
    Ok(Batches { count: 1, size: request.largest_batch(1, most)?.unwrap_or(1) })
}
