//! Programs of a server whose sequences are owned by the device or by the host, for workers in
//! which only time passes.

use model::config::{Dtype, ModelConfig};
use program::compile::{CompileError, compile};
use program::kv_owner::with_owners;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;

use crate::policy::{DefaultTiers, Policy, device_map};

/// Sizes of such a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedServerSize {
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
pub fn timed_plan(config: &ModelConfig, size: TimedServerSize) -> Result<Plan, CompileError> {
    let config = ModelConfig {
        hidden_size: 16,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 8,
        ffn_size: 32,
        vocab_size: 64,
        ..config.clone()
    };
    let tiers = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let map = device_map(&Policy::Resident, &config, true, tiers);
    let shape = RunShape {
        batches: 1,
        batch_size: size.slots,
        max_prompt: size.context,
        shared_prompt: 0,
        max_context: size.context,
        max_new: size.context,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: size.rows,
        serves: true,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: size.device_slots,
        dtype: Dtype::Bf16,
    };
    compile(&config, &shape, &with_owners(&map, &config))
}
