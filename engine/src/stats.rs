//! Measurements of a run, for its report.

use std::collections::BTreeMap;
use std::time::Duration;

use engine_api::serving::DraftCounts;

use crate::memory::PeakMemory;
use crate::routing_stats::RoutingStats;
use crate::sparse_attention_stats::SparseAttentionStats;
use crate::takeover::LostStorage;
use crate::trace_stats::{DecodePrediction, TraceTotals};

/// Measurements of a run.
#[derive(Debug, Clone, Default)]
pub struct RunStats {
    pub load: Duration,
    pub prefill: Duration,
    pub decode: Duration,
    pub groups: u64,
    /// Prompt tokens that were computed.
    pub prefill_tokens: u64,
    /// Prompt tokens that were not computed again because another prompt had the same prefix.
    pub shared_tokens: u64,
    pub generated_tokens: u64,
    /// Tokens sampled by decode steps: all except the first of each sequence.
    pub decode_tokens: u64,
    pub decode_steps: u64,
    /// Drafted tokens; all 0 if none were drafted.
    pub drafts: DraftCounts,
    pub totals: TraceTotals,
    pub load_peak_memory: PeakMemory,
    pub peak_memory: PeakMemory,
    pub kernel_variants: BTreeMap<String, String>,
    /// Number and description of the CUDA device; `None` for the emulated device or without a
    /// device.
    pub device: Option<String>,
    /// Paths of the stagings that were read, in storage order.
    pub staged_paths: Vec<String>,
    /// Storages that were lost, in the order of their loss.
    pub lost_storages: Vec<LostStorage>,
    /// Heap allocations of each worker from ready to drain, by the worker's name.
    pub allocations: BTreeMap<String, u64>,
    /// Choices of the routers; `None` for a model without routers, or if they are not counted.
    pub routing: Option<RoutingStats>,
    /// Numbers of positions that new tokens attended to, if they select.
    pub sparse_attention: Option<SparseAttentionStats>,
    /// Prediction for the last group with enough decode steps.
    pub prediction: Option<DecodePrediction>,
}
