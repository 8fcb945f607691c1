//! File of `--report r.json`: one object, described by an example in `docs/formats.md`.

use std::collections::BTreeMap;

use model::config::ModelConfig;
use program::map::{ComputeDevice, DeviceMap, layer_list};
use serde::{Deserialize, Serialize};

use super::routing::RoutingReport;
use super::select::SelectReport;
use super::storages::StorageReport;

/// Figures of a run. Times are in seconds, rates in tokens per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub version: String,
    pub model: String,
    pub dtype: String,
    /// Bytes of the weights, vectors included, by the format of their matrices.
    pub weight_bytes_by_format: BTreeMap<String, u64>,
    /// Format of the KV cache.
    pub kv_format: String,
    pub batches: u16,
    pub batch_size: u16,
    /// Length of the longest prompt, in tokens.
    pub prompt_len: u32,
    /// Maximum number of new tokens of a sequence.
    pub gen_len: u32,
    /// Requests by outcome; `null` for a benchmark.
    pub requests: Option<RequestCounts>,
    /// Decisions that the user did not make, in sentences.
    pub note: Option<String>,
    pub device: String,
    pub policy: String,
    pub device_map: MapSummary,
    /// Number of compute threads by worker.
    pub threads: BTreeMap<String, u16>,
    /// Variant of the kernels that each worker dispatched to.
    pub kernel_variants: BTreeMap<String, String>,
    pub groups: u64,
    pub load_s: f64,
    pub prefill_s: f64,
    pub decode_s: f64,
    pub total_s: f64,
    /// Number of prompt tokens that were computed.
    pub prefill_tokens: u64,
    /// Number of prompt tokens that were not computed, since they belong to a prefix shared with
    /// another prompt.
    pub shared_prompt_tokens: u64,
    /// Number of tokens of decode steps. The first token of each sequence belongs to prefill.
    pub decode_tokens: u64,
    /// Number of decode steps of all groups; fewer than predicted if answers end early.
    pub decode_steps: u64,
    /// Number of new tokens, including the first ones.
    pub generated_tokens: u64,
    pub prefill_tokens_per_s: Option<f64>,
    pub decode_tokens_per_s: Option<f64>,
    pub total_tokens_per_s: Option<f64>,
    /// Durations of decode steps; `null` if nothing was decoded. A step computes a token of every
    /// sequence, so this is also the time between two tokens of a sequence.
    pub decode_step: Option<StepTimes>,
    /// Prediction before the workers started; `null` without a profile of this machine.
    pub predicted: Option<PredictedReport>,
    /// Simulation of part of this run by its own costs; `null` if too few steps were decoded.
    pub replayed: Option<ReplayReport>,
    pub lanes: BTreeMap<String, LaneReport>,
    /// Share of the h2d lanes' busy time in which the CPU computed too; `null` without transfers.
    pub overlap: Option<f64>,
    /// Share of decode in which no lane did any work.
    pub time_outside: Option<f64>,
    pub streamed_weight_bytes: u64,
    pub streamed_kv_bytes: u64,
    /// Drives from which weights were read in every step, by name; empty if there were none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storages: BTreeMap<String, StorageReport>,
    /// Drafted tokens; absent if none were verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafts: Option<DraftReport>,
    /// Distribution of rows over experts; absent for a model without experts, and if it was not
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<RoutingReport>,
    /// Selection of the positions that new tokens attended to; absent if they attended to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_select: Option<SelectReport>,
    /// Planned bytes, before anything was loaded: `weights`, `kv`, `activations`, `device`.
    pub budget_bytes: BTreeMap<String, u64>,
    /// Maximum proportional set size between ready and exit, by process and in total.
    pub peak_pss_bytes: BTreeMap<String, u64>,
    /// Maximum proportional set size while loading, by process and in total.
    pub load_peak_pss_bytes: BTreeMap<String, u64>,
    /// Number of heap allocations of each worker while it ran groups.
    pub allocations_after_ready: BTreeMap<String, u64>,
    /// Number of trace records that did not fit and are missing from the figures above.
    pub lost_spans: u64,
}

/// Requests of an input file by outcome, including those of an earlier run that was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    pub answered: usize,
    /// Requests with an error line, or with an answer that violates its required format.
    pub failed: usize,
    /// Requests among the above whose answer was cut at its maximum number of tokens.
    pub cut: usize,
    /// Requests that were not reached.
    pub not_run: usize,
}

/// Durations of the decode steps of all groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    pub median_s: f64,
    /// 21 quantiles, from the minimum to the maximum in steps of 5%.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantiles_s: Vec<f64>,
    /// 95th percentile.
    pub p95_s: f64,
    pub max_s: f64,
}

/// Simulated durations of a whole run in which no sequence takes over the slot of another and every
/// group continues until its longest answer ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictedReport {
    /// Source of the costs. `profile`: measured before the run.
    pub source: String,
    pub prefill_s: f64,
    pub decode_s: f64,
    /// Lower and upper bound of prefill and decode together, if all uncertainties of the profile
    /// add up; `null` if the profile has none.
    #[serde(default)]
    pub between_s: Option<[f64; 2]>,
    /// Number of groups that `prefill_s` covers. In the run there may be more and smaller ones,
    /// since sequences that take over slots begin in groups of their own, each of which reads all
    /// weights.
    pub groups: u64,
    /// Number of decode steps that `decode_s` covers, which is the maximum.
    pub decode_steps: u64,
}

/// Second half of the last group's decode steps, as measured and as simulated with each
/// instruction's median cost in the first half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    pub simulated_s: f64,
    pub measured_s: f64,
    /// Time that each lane worked in these steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lanes: BTreeMap<String, ReplayLaneReport>,
    /// Two layers of a step in the middle of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<ReplayLayersReport>,
}

/// Busy time of a lane in the steps that were simulated again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayLaneReport {
    pub simulated_busy_s: f64,
    pub measured_busy_s: f64,
}

/// Timelines of some layers of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayLayersReport {
    pub simulated: LayerTimes,
    pub measured: LayerTimes,
}

/// Work of each lane from the start of some layers to their end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerTimes {
    pub length_s: f64,
    pub spans: Vec<LayerSpan>,
}

/// Work of a lane; times are relative to the start of the layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSpan {
    pub lane: String,
    /// The operation, or the one whose operand is moved.
    pub op: String,
    pub layer: Option<u16>,
    pub batch: u16,
    pub start_s: f64,
    pub end_s: f64,
}

/// Drafted tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DraftReport {
    /// Number of drafts from whose position a token was drawn.
    pub verified: u64,
    /// Number of drafts that are what was drawn: tokens that took no step of their own.
    pub accepted: u64,
}

/// Busy time of a lane in the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    pub busy_s: f64,
}

/// Summary of a device map as ranges of equal layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapSummary {
    pub prefill: Vec<LayerRange>,
    pub decode: Vec<LayerRange>,
    /// Device of the head and of sampling in decode.
    pub head: ComputeDevice,
    pub weight_slots: u16,
    pub kv_slots: u16,
}

/// Operations of each device in the layers `first..=last`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRange {
    pub first: usize,
    pub last: usize,
    pub cpu: Vec<String>,
    pub gpu: Vec<String>,
}

impl MapSummary {
    /// Summarises a device map.
    pub fn new(config: &ModelConfig, map: &DeviceMap) -> MapSummary {
        let prefill = (0..config.num_layers).map(|layer| {
            let list = layer_list(config, layer, None);
            list.into_iter().zip(map.prefill.layers[layer].iter().copied()).collect::<Vec<_>>()
        });
        let decode = (0..config.num_layers).map(|layer| map.decode_layer(config, layer));
        let op_names = |layer: Vec<(program::map::OpChunk, ComputeDevice)>,
                        device: ComputeDevice|
         -> Vec<String> {
            let on = layer.into_iter().filter(|(_, other)| *other == device);
            on.map(|(entry, _)| entry.name(config)).collect()
        };
        let ranges =
            |layers: &mut dyn Iterator<Item = Vec<(program::map::OpChunk, ComputeDevice)>>| {
                let mut ranges: Vec<LayerRange> = Vec::new();
                for (index, layer) in layers.enumerate() {
                    let cpu = op_names(layer.clone(), ComputeDevice::Cpu);
                    let gpu = op_names(layer, ComputeDevice::Gpu);
                    match ranges.last_mut() {
                        Some(last) if last.cpu == cpu && last.gpu == gpu => last.last = index,
                        _ => ranges.push(LayerRange { first: index, last: index, cpu, gpu }),
                    }
                }
                ranges
            };
        MapSummary {
            prefill: ranges(&mut prefill.into_iter()),
            decode: ranges(&mut decode.into_iter()),
            head: map.decode.head,
            weight_slots: map.weight_slots,
            kv_slots: map.kv_slots,
        }
    }
}
