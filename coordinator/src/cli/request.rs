//! Validated requests of the commands, with defaults filled in.

use std::path::PathBuf;
use std::time::Duration;

use batch::score::question::ScoreDetails;
use batch::sink::{IoTarget, OutputMode};
use hyper::header::HeaderValue;
use model::config::Dtype;
use openai::body::defaults::Defaults;
use openai::chats::ChatOptions;
use planner::policy::name::PolicyName;
use program::map::Chunking;
use protocol::messages::SegmentNodes;
use server::config::ServerOptions;
use workers::device::RateSizes;

use super::kv_select::KvSelectChoice;
use super::values::{
    Batches, BatchesChoice, CompressChoice, DeviceChoice, NvmeDirect, NvmeOps, QuantizedChoice,
    StagedFormat,
};
use crate::load::api::Api;
use crate::load::arrivals::Rate;
use crate::load::server_url::ServerUrl;
use crate::load::slo::Slo;

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

/// Request of the main command: a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRequest {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
    /// Resolved: `Direct` for bf16 and `Expand` for f32 by default.
    pub quantized: QuantizedChoice,
    /// Selection of cached positions; `None`: new tokens attend to all of them.
    pub kv_select: Option<KvSelectChoice>,
    /// Number and size of batches; `None`: 1xB with the largest B up to 32 that fits memory.
    pub batches: Option<BatchesChoice>,
    pub task: RunTask,
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
    /// Measured best numbers of threads, which apply if `cpu_threads` is `None`.
    pub tuned_threads: TunedThreads,
    pub emulated_threads: Option<u16>,
    pub vram_bytes: Option<u64>,
    pub dram_bytes: Option<u64>,
    /// NUMA nodes of host memory for weights and for KV caches.
    pub nodes: SegmentNodes,
    /// Directories on drives, each of which holds all weights that are read in every step.
    pub nvme: Vec<PathBuf>,
    pub nvme_ops: NvmeOps,
    pub nvme_direct: NvmeDirect,
    /// Store for prompt prefixes, if any.
    pub prompt_cache: Option<PromptCacheConfig>,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
    /// Ends the run at the end of stdin, as a signal does.
    pub stop_at_eof: bool,
    pub verbosity: Verbosity,
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

/// Request of `cache`: a store of prompt prefixes, and the action on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRequest {
    pub directory: PathBuf,
    pub action: CacheAction,
}

/// Action on a store of prompt prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheAction {
    List {
        json: bool,
    },
    /// Removes the prefixes that at least one of the fields selects.
    Remove {
        names: Vec<String>,
        model: Option<String>,
        unused_days: Option<u32>,
        all: bool,
    },
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

/// Request of `serve`: a model to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeRequest {
    /// Run that computes the answers; its `work` is ignored.
    pub run: RunRequest,
    pub host: String,
    /// Port; 0 selects a free one.
    pub port: u16,
    /// Names of the model in addition to its own; answers contain the first one.
    pub names: Vec<String>,
    /// Number of sequences computed at a time; `None`: as many as fit.
    pub slots: Option<u16>,
    /// Maximum number of positions of a sequence; `None`: the model's own.
    pub context: Option<u32>,
    /// Maximum predicted time of a step; `None`: the default.
    pub step_ms: Option<u32>,
    /// Scheduling policy for sequences that belong to the device or to the host, and the number of
    /// sequences that the device has caches for; `None`: as many as fit.
    pub hybrid: Option<(scheduler::hybrid::SchedulingPolicy, Option<u16>)>,
    /// File for the measured costs of iterations.
    pub costs: Option<PathBuf>,
    pub options: ServerOptions,
}

/// Request of `report`: a page to write from a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRequest {
    pub report: PathBuf,
    /// Report to compare with.
    pub compare: Option<PathBuf>,
    pub html: PathBuf,
}

/// Request of `score`: texts to score.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreRequest {
    /// Run that computes the scores; its `work` is ignored.
    pub run: RunRequest,
    pub input: IoTarget,
    pub output: IoTarget,
    pub mode: OutputMode,
    /// Number of tokens of a text's window; `None`: the model's positions, up to a maximum.
    pub context: Option<u32>,
    /// Number of tokens from one window of a text to the next; `None`: half of a window.
    pub stride: Option<u32>,
    pub options: ScoreDetails,
    /// Number of sequences computed at a time; `None`: as many as fit.
    pub slots: Option<u16>,
    /// File for a summary of all scores.
    pub summary: Option<PathBuf>,
}

/// Request of `bench-serve`: a server to measure, and its load.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchServeRequest {
    pub target: ServerUrl,
    pub api: Api,
    /// Name of the model in requests; `None`: requests name no model.
    pub model: Option<String>,
    /// `Bearer` and the key; never printed.
    pub authorization: Option<HeaderValue>,
    /// Time limit of each answer.
    pub timeout: Duration,
    pub lengths: LengthsChoice,
    /// Rate of arrivals; `None`: all at once, or a trace's own times.
    pub rate: Option<Rate>,
    /// Number of requests; `None`: the default, or all of a trace.
    pub requests: Option<usize>,
    /// Exclusive upper bound of the prompts' token ids.
    pub vocab_size: u32,
    pub seed: u64,
    pub slo: Slo,
    pub json: bool,
}

/// Lengths of prompts and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LengthsChoice {
    Fixed {
        prompt_tokens: u32,
        answer_tokens: u32,
    },
    /// Rows drawn at random from a table.
    Rows(PathBuf),
    /// Rows of a table in order, at their own times.
    Trace(PathBuf),
}

/// Request of `profile`: measurements of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRequest {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
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

/// Request of `stage`: weights to write to drives, or an action on staged ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRequest {
    /// Ignored if only the status is requested.
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub format: StagedFormat,
    pub quantized: QuantizedChoice,
    /// Target directories, at least one.
    pub directories: Vec<PathBuf>,
    /// Seed of dummy weights.
    pub seed: u64,
    pub action: StageAction,
    pub quiet: bool,
}

/// Request of `pull`: a model to fetch from a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Name of the model, as `org/name`.
    pub model: String,
    /// Branch, tag or commit.
    pub revision: Option<String>,
    /// Files to fetch; if empty, those that the model needs.
    pub files: Vec<String>,
    pub quiet: bool,
}

/// Action on staged weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageAction {
    /// Writes the missing weights.
    Stage,
    /// Reads all staged weights and verifies their checksums.
    Verify,
    /// Lists the staged weights.
    Status,
}

/// Request of `plan`: a workload to plan, and the output.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRequest {
    pub source: PlanSource,
    pub json: bool,
    /// File for `scripts/plot.py`.
    pub chart: Option<PathBuf>,
}

/// Source of costs.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanSource {
    /// Measurements of this machine, for a run on it.
    ThisMachine(Box<RunRequest>),
    /// A table of measured times.
    Tables(PathBuf),
    /// A machine's description: a file, or the name of one that is included in the program.
    Machine { machine: String, workload: Box<PlanWorkload> },
    /// Requests that arrive at a described machine, under every serving policy.
    Serving { machine: String, serving: Box<ServingWorkload> },
    /// Requests that arrive at a server that measured its iterations, under every serving policy.
    MeasuredServer { costs: PathBuf, load: Box<LoadChoice> },
    /// Several described machines to compare.
    Compare { machines: Vec<String>, workload: Box<PlanWorkload> },
    /// No costs: prints a template file.
    Template(Template),
}

/// Template files that users can start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    /// Template for `--machine`.
    Machine,
    /// Template for `--tables`.
    Table,
}

/// A model and a workload for described machines.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

/// A model and requests for a described machine that serves.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingWorkload {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub load: LoadChoice,
    /// Maximum number of rows in an iteration.
    pub step_rows: u32,
    /// Additional replay in timed emulation, if requested.
    pub timed: Option<TimedReplay>,
}

/// Load of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadChoice {
    pub lengths: LengthsChoice,
    /// Rate of arrivals; `None`: all at once, or a trace's own times.
    pub rate: Option<Rate>,
    /// Number of requests; `None`: the default, or all of a trace.
    pub requests: Option<usize>,
    pub seed: u64,
}

/// Replay of requests in timed emulation: on the real processes, without computing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedReplay {
    pub policy: scheduler::hybrid::SchedulingPolicy,
    /// Number of sequences with caches in device memory; `None`: as many as fit.
    pub device_slots: Option<u16>,
}

/// Request of timed emulation: programs to run without computing anything, and the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedRequest {
    pub source: TimedSource,
    /// Number of new tokens; one step less is measured.
    pub gen_len: u32,
    pub json: bool,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
    pub verbosity: Verbosity,
}

/// Source of the times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimedSource {
    /// A table of one layer's times, used for each of `layers` layers.
    Tables { tables: PathBuf, layers: usize },
    /// A described machine, as a file or the name of one, with a model.
    Machine { machine: String, workload: Box<PlanWorkload> },
}

/// Hidden request: measurements of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RatesRequest {
    pub device: u32,
    pub kind: RateKind,
}

/// Rates to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateKind {
    /// Only the amounts of free and total memory.
    Memory,
    /// Copies and matrix products.
    Basic(RateSizes),
    /// Kernels whose names contain the text.
    Kernels(String),
    /// Small copies concurrently with products of matrices with `matrix` rows, in one process and
    /// in two.
    SmallCopies { matrix: u32 },
    /// No rates: multiplies matrices with `matrix` rows until stdin ends, while another process
    /// measures.
    KeepBusy { matrix: u32 },
}
