//! `--report r.json`: one object, described by example in `docs/formats.md`.

use std::collections::BTreeMap;

use model::config::ModelConfig;
use program::map::{Device, DeviceMap, layer_list};
use serde::{Deserialize, Serialize};

use super::routing::RoutingReport;
use super::select::SelectReport;
use super::storages::StorageReport;

/// A run, in numbers. Times in seconds, rates in tokens per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub version: String,
    pub model: String,
    pub dtype: String,
    /// Bytes of the weights by the form of their matrices, vectors included.
    pub weight_bytes_by_format: BTreeMap<String, u64>,
    /// Form of the KV cache.
    pub kv_format: String,
    pub batches: u16,
    pub batch_size: u16,
    /// Longest prompt, tokens.
    pub prompt_len: u32,
    /// Largest number of new tokens of a sequence.
    pub gen_len: u32,
    /// How requests ended; `null` for a benchmark.
    pub requests: Option<RequestCounts>,
    /// What was decided that nobody asked for, in sentences.
    pub note: Option<String>,
    pub device: String,
    pub policy: String,
    pub device_map: MapSummary,
    /// Compute threads by worker.
    pub threads: BTreeMap<String, u16>,
    /// Which kernels each worker dispatched to.
    pub kernel_variants: BTreeMap<String, String>,
    pub groups: u64,
    pub load_s: f64,
    pub prefill_s: f64,
    pub decode_s: f64,
    pub total_s: f64,
    /// Of prompts, as many as were computed.
    pub prefill_tokens: u64,
    /// Of prompts that begin like others: computed with those.
    pub shared_prompt_tokens: u64,
    /// Tokens of decode steps: the first token of each sequence belongs to prefill.
    pub decode_tokens: u64,
    /// Of all groups; fewer than predicted where answers end early.
    pub decode_steps: u64,
    /// All new tokens.
    pub generated_tokens: u64,
    pub prefill_tokens_per_s: Option<f64>,
    pub decode_tokens_per_s: Option<f64>,
    pub total_tokens_per_s: Option<f64>,
    /// How long decode steps took; `null` when nothing was decoded. A step makes a token of every
    /// sequence, so this is also the time between two tokens of one.
    pub decode_step: Option<StepTimes>,
    /// What was predicted before the workers started; `null` without a profile of this machine.
    pub predicted: Option<Predicted>,
    /// The simulator tried on this run; `null` when too few steps were decoded.
    pub replayed: Option<Replayed>,
    pub lanes: BTreeMap<String, LaneReport>,
    /// Share of the h2d lanes' busy time beside which the CPU computed; `null` without transfers.
    pub overlap: Option<f64>,
    /// Share of decode in which no lane was inside work.
    pub time_outside: Option<f64>,
    pub streamed_weight_bytes: u64,
    pub streamed_kv_bytes: u64,
    /// Drives that weights were read from in every step, by name; empty where none were.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storages: BTreeMap<String, StorageReport>,
    /// How rows were spread over experts; absent of a model without, and where nobody counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<RoutingReport>,
    /// Which positions new tokens attended to; absent where they attended to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_select: Option<SelectReport>,
    /// What the plan was granted before anything loaded: `weights`, `kv`, `activations`, `device`.
    pub budget_bytes: BTreeMap<String, u64>,
    /// Largest proportional set size seen from ready to exit, by process and summed.
    pub peak_pss_bytes: BTreeMap<String, u64>,
    /// The same while loading.
    pub load_peak_pss_bytes: BTreeMap<String, u64>,
    /// Heap allocations of each worker while it ran groups.
    pub allocations_after_ready: BTreeMap<String, u64>,
    /// Trace records that did not fit and are missing from the figures above.
    pub lost_spans: u64,
}

/// Requests of an input file by how they ended, those of an earlier run that was resumed included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    pub answered: usize,
    /// With an error line, or an answer without the form that it must have.
    pub failed: usize,
    /// Of those above, with an answer that was cut at its largest number of tokens.
    pub cut: usize,
    /// Not reached.
    pub not_run: usize,
}

/// Of all decode steps of all groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    pub median_s: f64,
    /// 21 of them: the shortest step, the longest, and between them the step that every further 5
    /// of 100 are not longer than.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantiles_s: Vec<f64>,
    /// 95 of 100 steps are not longer.
    pub p95_s: f64,
    pub max_s: f64,
}

/// What the simulator says of the whole run if no sequence takes the place of another, every group
/// going on to its longest answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// `profile`: costs that were measured before.
    pub source: String,
    pub prefill_s: f64,
    pub decode_s: f64,
    /// Of both together the least and the most, if all that is uncertain of the profile comes
    /// together; `null` where it says nothing of that.
    #[serde(default)]
    pub between_s: Option<[f64; 2]>,
    /// What `prefill_s` is of: sequences that follow others begin in groups of their own, which are
    /// more and smaller, and each reads all weights.
    pub groups: u64,
    /// What `decode_s` is of: as many as there can be.
    pub decode_steps: u64,
}

/// The second half of the last group's decode steps, simulated with each instruction's median cost
/// in the first half, and measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    pub simulated_s: f64,
    pub measured_s: f64,
    /// Time each lane was inside work in these steps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lanes: BTreeMap<String, ReplayedLane>,
    /// Two layers of a step in the middle of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<ReplayedLayers>,
}

/// One lane's share of the steps that were simulated again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayedLane {
    pub simulated_busy_s: f64,
    pub measured_busy_s: f64,
}

/// Layers of a step in time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplayedLayers {
    pub simulated: LayerTimes,
    pub measured: LayerTimes,
}

/// What each lane did from the beginning of the first of some layers to their end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerTimes {
    pub length_s: f64,
    pub spans: Vec<LayerSpan>,
}

/// Work of a lane, from the beginning of the layers on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerSpan {
    pub lane: String,
    /// The operation, or the one that what is moved is for.
    pub op: String,
    pub layer: Option<u16>,
    pub batch: u16,
    pub start_s: f64,
    pub end_s: f64,
}

/// One lane's share of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    pub busy_s: f64,
}

/// A device map in few lines: runs of equal layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapSummary {
    pub prefill: Vec<LayerRange>,
    pub decode: Vec<LayerRange>,
    /// Device of the head and of sampling in decode.
    pub head: Device,
    pub weight_slots: u16,
    pub kv_slots: u16,
}

/// Layers `first..=last` with the operations of each device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRange {
    pub first: usize,
    pub last: usize,
    pub cpu: Vec<String>,
    pub gpu: Vec<String>,
}

impl MapSummary {
    /// Summarises a map.
    pub fn new(config: &ModelConfig, map: &DeviceMap) -> MapSummary {
        let prefill = (0..config.num_layers).map(|layer| {
            let list = layer_list(config, layer, None);
            list.into_iter().zip(map.prefill.layers[layer].iter().copied()).collect::<Vec<_>>()
        });
        let decode = (0..config.num_layers).map(|layer| map.decode_layer(config, layer));
        let named = |layer: Vec<(program::map::OpChunk, Device)>, device: Device| -> Vec<String> {
            let on = layer.into_iter().filter(|(_, other)| *other == device);
            on.map(|(entry, _)| entry.name(config)).collect()
        };
        let ranges = |layers: &mut dyn Iterator<Item = Vec<(program::map::OpChunk, Device)>>| {
            let mut ranges: Vec<LayerRange> = Vec::new();
            for (index, layer) in layers.enumerate() {
                let cpu = named(layer.clone(), Device::Cpu);
                let gpu = named(layer, Device::Gpu);
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
