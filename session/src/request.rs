//! Validated requests that a session is prepared from, with defaults filled in.

use std::path::PathBuf;
use std::sync::Arc;

use batch::sink::{IoTarget, OutputMode};
use engine_api::request::Pooling;
use model::config::Dtype;
use model::quantized_format::ActivationFormat;
use openai::body::defaults::Defaults;
use openai::chats::ChatOptions;
use planner::policy::name::PolicyName;
use program::expert_reads::ExpertReads;
use program::map::Chunking;
use program::routing_counts::RoutingCounts;
use protocol::messages::SegmentNodes;

use crate::values::{
    Batches, BatchesChoice, CompressChoice, DeviceChoice, KvSelectChoice, NvmeDirect, NvmeOps,
    QuantizedChoice,
};

/// Best numbers of CPU threads for maps with and without a device, according to profiles; `None`:
/// one per core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunedThreads {
    pub with_device: Option<u16>,
    pub without_device: Option<u16>,
}

impl TunedThreads {
    /// Returns the number of threads for a map that uses the device, or for one that does not.
    pub const fn for_device_use(self, uses_gpu: bool) -> Option<u16> {
        if uses_gpu { self.with_device } else { self.without_device }
    }
}

/// How a model is computed, as the user chose it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionOptions {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
    /// Resolved: `Direct` for bf16 and `Expand` for f32 by default.
    pub quantized: QuantizedChoice,
    /// Rounding of activations that are multiplied by low-bit weights.
    pub activations: ActivationFormat,
    /// Selection of cached positions; `None`: new tokens attend to all of them.
    pub kv_select: Option<KvSelectChoice>,
    pub seed: u64,
    /// Resolved: never `Auto`, and a CUDA device exists.
    pub device: DeviceChoice,
    pub placement: PlacementChoice,
    /// Parts into which a searched split may cut attention and linears; `None`: according to
    /// measurements.
    pub chunking: Option<Chunking>,
    /// Runs attention as one operation if all of it is on one device.
    pub fuse_attention: bool,
    /// Computes common prefixes of prompts once.
    pub shares_prompts: bool,
    /// Maximum number of a prompt's tokens computed together; `None`: determined by memory.
    pub prefill_chunk: Option<u32>,
    pub cpu_threads: Option<u16>,
    pub emulated_threads: Option<u16>,
    pub vram_bytes: Option<u64>,
    pub dram_bytes: Option<u64>,
    /// NUMA nodes of host memory for weights and for KV caches.
    pub nodes: SegmentNodes,
    /// Directories on drives, each of which holds all weights that are read in every step.
    pub nvme: Vec<PathBuf>,
    pub nvme_ops: NvmeOps,
    pub nvme_experts: ExpertReads,
    /// Host memory for experts that stay after they were read.
    pub expert_cache_bytes: u64,
    pub nvme_direct: NvmeDirect,
    /// Measured routing of rows to experts; `None`: all experts are taken to be equally likely.
    pub routing: Option<Arc<RoutingCounts>>,
    /// Store for prompt prefixes, if any.
    pub prompt_cache: Option<PromptCacheConfig>,
    /// Maximum number of drafted tokens of a sequence in a step; 0 if none are drafted.
    pub max_drafts: u32,
    /// True if tokens of all sequences are drafted; otherwise only those of requests that predict
    /// their answer.
    pub drafts_all: bool,
    /// True if the slots of recurrent states have space for drafts.
    pub drafts_over_states: bool,
    /// True if the model's layer for multi-token prediction drafts them.
    pub uses_prediction_layer: bool,
    /// Model that drafts them; `None` for prompt lookup or a layer of the model.
    pub draft_model: Option<ModelChoice>,
    /// Ends the run at the end of stdin, as a signal does.
    pub stop_at_eof: bool,
    pub verbosity: Verbosity,
}

impl SessionOptions {
    /// Returns true if only errors are printed.
    pub fn is_quiet(&self) -> bool {
        self.verbosity == Verbosity::Quiet
    }
}

/// Request of the main command: a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRequest {
    pub options: SessionOptions,
    /// Number and size of batches; `None`: 1xB with the largest B up to 32 that fits memory.
    pub batches: Option<BatchesChoice>,
    pub task: RunTask,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
}

/// Store of prompt prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptCacheConfig {
    pub directory: PathBuf,
    /// Maximum size of the store; `None`: limited by the drive.
    pub max_bytes: Option<u64>,
    /// Minimum number of tokens of a stored prompt.
    pub min_tokens: u32,
}

/// Model, and the part of it to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChoice {
    /// Path, `org/name` or known name.
    pub name: String,
    pub revision: Option<String>,
    pub dummy_weights: bool,
    pub layers: Option<usize>,
    /// Overrides the model's maximum number of positions, of whatever kind they are; `None`: its
    /// own.
    pub positions: Option<usize>,
}

impl ModelChoice {
    /// Returns a model of which only the configuration is read; its weights need not exist.
    pub const fn config_only(name: String, layers: Option<usize>) -> ModelChoice {
        ModelChoice { name, revision: None, dummy_weights: true, layers, positions: None }
    }
}

/// Work of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum RunTask {
    Benchmark { prompt_len: u32, gen_len: u32 },
    Requests(Box<BatchJobRequest>),
}

/// File of requests to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchJobRequest {
    pub input: IoTarget,
    pub output: IoTarget,
    pub mode: OutputMode,
    pub chat: bool,
    pub chats: ChatOptions,
    /// Pooling of embeddings; `None`: that of the model's files.
    pub pooling: Option<Pooling>,
    pub max_tokens: Option<u32>,
    /// Defaults for raw prompts and short lines; the schema is not read yet.
    pub defaults: Defaults,
    /// File of the default schema.
    pub json_schema: Option<PathBuf>,
    pub ignore_unknown_fields: bool,
}

/// A policy by name, or a specified split, which `planner::split::parse_split` later resolves
/// against the model's layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlacementChoice {
    Named(PolicyName),
    Split { split: String, chunking: Option<Chunking> },
}

/// Amount of output on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    Quiet,
    /// Progress of long work only; the result reports the rest.
    Progress,
    Normal,
    Verbose,
}

/// Request of `profile`: measurements of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRequest {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
    pub activations: ActivationFormat,
    pub batches: Batches,
    pub prompt_len: u32,
    pub gen_len: u32,
    /// Resolved: never `Auto`, and a CUDA device exists.
    pub device: DeviceChoice,
    pub cpu_threads: Option<u16>,
    pub emulated_threads: Option<u16>,
    /// Directories of staged weights, whose drives are measured too.
    pub nvme: Vec<PathBuf>,
    /// The staged weights are dummy weights.
    pub dummy_weights: bool,
    /// File for a description of the machine; requires a device.
    pub export: Option<PathBuf>,
    pub force: bool,
    pub quiet: bool,
}

/// A model and a workload for described machines.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanWorkload {
    pub model: ModelChoice,
    pub dtype: Dtype,
    /// Compression; `None`: lossless if it fits, otherwise both weights and KV in 4 bits.
    pub compress: Option<CompressChoice>,
    pub batches: BatchesChoice,
    pub prompt_len: u32,
    pub gen_len: u32,
    pub policy: PolicyName,
    pub chunking: Option<Chunking>,
    /// Measured routing of rows to experts; `None`: all experts are taken to be equally likely.
    pub routing: Option<Arc<RoutingCounts>>,
    /// Speculative decoding to predict too.
    pub speculation: Option<PlannedSpeculation>,
}

/// Source of drafts, as far as their cost depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannedDrafter {
    /// Drafts that take no time, such as those of prompt lookup.
    Free,
    /// A model on the CPU.
    Model(ModelChoice),
    /// The model's layer for multi-token prediction, on the CPU.
    PredictionLayer,
}

/// Speculative decoding whose gain is predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSpeculation {
    pub drafter: PlannedDrafter,
    /// Maximum number of drafted tokens of a sequence in a step, at least 1.
    pub max_drafts: u32,
    /// Probability that a draft is accepted if those before it are.
    pub acceptance: f64,
}
