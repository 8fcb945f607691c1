//! Programs of a server whose sequences are owned by the device or by the host, for workers in
//! which only time passes.

use model::config::{Dtype, ModelConfig};
use program::compile::{CompileError, compile};
use program::owners::with_owners;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;

use crate::policy::{Homes, Policy, device_map};

/// Sizes of such a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedServing {
    /// Maximum number of concurrent sequences, and the number of those with caches on the device.
    pub slots: u16,
    pub device_slots: u16,
    /// Maximum number of positions of a sequence.
    pub context: u32,
    /// Maximum number of rows of an iteration.
    pub rows: u32,
}

/// Returns a plan with as many layers as the model has, of minimal size, all on the device.
///
/// # Errors
/// A model that does not support such programs.
pub fn timed_plan(config: &ModelConfig, of: TimedServing) -> Result<Plan, CompileError> {
    let config = ModelConfig {
        hidden_size: 16,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 8,
        ffn_size: 32,
        vocab_size: 64,
        ..config.clone()
    };
    let homes = Homes { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let map = device_map(&Policy::Resident, &config, true, homes);
    let shape = RunShape {
        batches: 1,
        batch_size: of.slots,
        max_prompt: of.context,
        shared_prompt: 0,
        max_context: of.context,
        max_new: of.context,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: of.rows,
        serves: true,
        page_positions: 0,
        kv_pages: 0,
        logits_rows: 0,
        device_slots: of.device_slots,
        dtype: Dtype::Bf16,
    };
    compile(&config, &shape, &with_owners(&map, &config))
}
