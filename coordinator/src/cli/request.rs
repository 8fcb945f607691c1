//! What was asked for, with defaults filled in and nothing left to misread.

use std::path::PathBuf;
use std::time::Duration;

use hyper::header::HeaderValue;
use model::config::Dtype;
use planner::policy::by_name::PolicyName;
use program::map::Chunking;
use workers::device::RateSizes;
use workers::shared::protocol::MemoryNodes;

use super::select::SelectChoice;
use super::values::{
    Batches, BatchesChoice, CompressChoice, DeviceChoice, NvmeDirect, NvmeOps, QuantizedChoice,
    StagedForm,
};
use crate::job::sink::{OutputMode, Place};
use crate::load::api::Api;
use crate::load::arrivals::Rate;
use crate::load::slo::Slo;
use crate::load::target::Target;
use crate::openai::body::defaults::Defaults;
use crate::openai::chats::ChatOptions;
use crate::score::item::Shown;
use crate::server::facts::ServerOptions;

/// Threads of the CPU of maps with a device and of those without, as profiles found them best;
/// `None`: as many as there are cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuned {
    pub with_device: Option<u16>,
    pub alone: Option<u16>,
}

impl Tuned {
    /// Of a map that uses the device, or of one that does not.
    pub const fn of(self, uses_gpu: bool) -> Option<u16> {
        if uses_gpu { self.with_device } else { self.alone }
    }
}

/// The main command.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
    /// Resolved: `Direct` for bf16 unless told otherwise.
    pub quantized: QuantizedChoice,
    /// `None`: new tokens attend to everything.
    pub kv_select: Option<SelectChoice>,
    /// `None`: 1xB with the largest B up to 32 that fits memory.
    pub batches: Option<BatchesChoice>,
    pub work: Work,
    pub seed: u64,
    /// A CUDA device is one that this machine has.
    pub device: DeviceChoice,
    pub placement: PlacementChoice,
    /// How a searched split may cut attention; `None`: as was measured.
    pub chunking: Option<Chunking>,
    /// Attention whole on one device runs as one operation.
    pub fuse_attention: bool,
    /// Prompts that begin alike share the computation.
    pub shares_prompts: bool,
    /// Most tokens of a prompt that are computed together; `None`: as memory allows.
    pub prefill_chunk: Option<u32>,
    pub cpu_threads: Option<u16>,
    /// Those that were measured to be better, where none are asked for.
    pub tuned: Tuned,
    pub emulated_threads: Option<u16>,
    pub vram_bytes: Option<u64>,
    pub dram_bytes: Option<u64>,
    /// NUMA nodes on which host memory lies.
    pub nodes: MemoryNodes,
    /// Directories on drives, each with all weights that are read in every step.
    pub nvme: Vec<PathBuf>,
    pub nvme_ops: NvmeOps,
    pub nvme_direct: NvmeDirect,
    /// Where beginnings of prompts are stored.
    pub prompt_cache: Option<PromptCache>,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
    /// The end of stdin asks for the end, as a signal does.
    pub stop_at_eof: bool,
    pub verbosity: Verbosity,
}

/// A store of prompts' beginnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptCache {
    pub directory: PathBuf,
    /// Most bytes in it; `None`: as many as the drive takes.
    pub most_bytes: Option<u64>,
    /// Prompts of fewer tokens are not stored.
    pub least_tokens: u32,
}

/// A store of prompts' beginnings to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRequest {
    pub directory: PathBuf,
    pub action: CacheAction,
}

/// What to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheAction {
    List {
        json: bool,
    },
    /// What any of these says.
    Remove {
        names: Vec<String>,
        model: Option<String>,
        unused_days: Option<u32>,
        all: bool,
    },
}

/// Which model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChoice {
    /// A path, `org/name` or a known name.
    pub name: String,
    pub revision: Option<String>,
    pub dummy_weights: bool,
    pub layers: Option<usize>,
    /// As if it had so many positions, of whatever kind; `None`: its own.
    pub positions: Option<usize>,
}

/// What is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    Benchmark { prompt_len: u32, gen_len: u32 },
    Requests(Box<Requests>),
}

/// A file of requests to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Requests {
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    pub chat: bool,
    pub chats: ChatOptions,
    pub max_tokens: Option<u32>,
    /// For raw prompts and short lines that do not say; the schema is not read yet.
    pub defaults: Defaults,
    /// The file of the schema.
    pub json_schema: Option<PathBuf>,
    pub ignore_unknown_fields: bool,
}

/// A policy by name, or a split by hand. The split is resolved against the model's layer later, by
/// `planner::split::parse_split`.
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

/// A model to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeRequest {
    /// What computes; its work is of no account.
    pub run: Run,
    pub host: String,
    /// 0 takes a free one.
    pub port: u16,
    /// Names of the model beside its own; the first stands in answers.
    pub names: Vec<String>,
    /// Sequences that are computed at a time; `None`: as many as fit.
    pub slots: Option<u16>,
    /// Positions of a sequence, at most; `None`: the model's own.
    pub context: Option<u32>,
    /// How long a step may be predicted to take.
    pub step_ms: Option<u32>,
    /// Sequences belong to the device or to the host: who decides, and for how many the device has
    /// caches; `None`: as many as there is room for.
    pub owners: Option<(schedule::hybrid::Policy, Option<u16>)>,
    /// Where to write what iterations were measured to take.
    pub costs: Option<PathBuf>,
    pub options: ServerOptions,
}

/// A page to write of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRequest {
    pub report: PathBuf,
    /// One to show beside it.
    pub compare: Option<PathBuf>,
    pub html: PathBuf,
}

/// Texts to score.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreRequest {
    /// What computes; its work is of no account.
    pub run: Run,
    pub input: Place,
    pub output: Place,
    pub mode: OutputMode,
    /// Of a text: tokens of a window; `None`: as many as the model has positions, up to a bound.
    pub context: Option<u32>,
    /// Of a text: tokens from one window to the next; `None`: half of a window.
    pub stride: Option<u32>,
    pub shown: Shown,
    /// Sequences that are computed at a time; `None`: as many as fit.
    pub slots: Option<u16>,
    /// A file for what all scores say together.
    pub summary: Option<PathBuf>,
}

/// A server to measure, and by what load.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchServeRequest {
    pub target: Target,
    pub api: Api,
    /// `None`: requests name no model.
    pub model: Option<String>,
    /// `Bearer` and the key; it is printed nowhere.
    pub authorization: Option<HeaderValue>,
    /// For each answer.
    pub timeout: Duration,
    pub lengths: LengthsChoice,
    /// `None`: all at once, and a trace as it was.
    pub rate: Option<Rate>,
    /// `None`: the usual number, and all of a trace.
    pub requests: Option<usize>,
    /// Tokens of prompts are below.
    pub vocab_size: u32,
    pub seed: u64,
    pub slo: Slo,
    pub json: bool,
}

/// How long prompts and answers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LengthsChoice {
    Alike {
        prompt_tokens: u32,
        answer_tokens: u32,
    },
    /// Drawn from a table.
    Rows(PathBuf),
    /// A table row by row, at its own times.
    Trace(PathBuf),
}

/// What to measure of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRequest {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
    pub batches: Batches,
    pub prompt_len: u32,
    pub gen_len: u32,
    /// One that exists.
    pub device: DeviceChoice,
    pub cpu_threads: Option<u16>,
    pub emulated_threads: Option<u16>,
    /// Directories of stagings, whose drives are measured too.
    pub nvme: Vec<PathBuf>,
    /// Of the stagings.
    pub dummy_weights: bool,
    /// Where a description of the machine goes; then there is a device.
    pub export: Option<PathBuf>,
    pub force: bool,
    pub quiet: bool,
}

/// Weights to write to drives, or what to do with those that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageRequest {
    /// Of no account where only the status is asked for.
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub form: StagedForm,
    pub quantized: QuantizedChoice,
    /// At least one.
    pub directories: Vec<PathBuf>,
    /// Of dummy weights.
    pub seed: u64,
    pub action: StageAction,
    pub quiet: bool,
}

/// A model to fetch from a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// As `org/name`.
    pub model: String,
    /// Branch, tag or commit.
    pub revision: Option<String>,
    /// The files; without any those that a model needs.
    pub files: Vec<String>,
    pub quiet: bool,
}

/// What to do with a staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageAction {
    /// Write what is missing.
    Stage,
    /// Read it all and compare it with its checksums.
    Verify,
    /// Say what is there.
    Status,
}

/// What to plan, and how to say it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanRequest {
    pub source: Source,
    pub json: bool,
    /// A file for `scripts/plot.py`.
    pub chart: Option<PathBuf>,
}

/// Where costs come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// This machine and a run on it.
    Here(Box<Run>),
    /// A table of measured times.
    Tables(PathBuf),
    /// A machine by description, which is a file or the name of one that comes with the program.
    Machine { machine: String, described: Box<Described> },
    /// Requests that come to such a machine, under every policy of serving.
    Serving { machine: String, serving: Box<ServingPlan> },
    /// Requests that come to a server that has measured its iterations, under every policy.
    Served { costs: PathBuf, load: Box<LoadChoice> },
    /// Several of them, side by side.
    Compare { machines: Vec<String>, described: Box<Described> },
    /// No costs: a file to begin with is printed.
    Template(Template),
}

/// A file to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    /// For `--machine`.
    Machine,
    /// For `--tables`.
    Table,
}

/// A model and a workload for described machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub model: ModelChoice,
    pub dtype: Dtype,
    /// `None`: lossless where that fits, else both weights and KV in 4 bits.
    pub compress: Option<CompressChoice>,
    pub batches: BatchesChoice,
    pub prompt_len: u32,
    pub gen_len: u32,
    pub policy: PolicyName,
    pub chunking: Option<Chunking>,
}

/// A model and requests for a described machine that serves.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingPlan {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub load: LoadChoice,
    /// Most rows of an iteration.
    pub step_rows: u32,
    /// What is replayed beside it.
    pub timed: Option<TimedReplay>,
}

/// The requests that come.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadChoice {
    pub lengths: LengthsChoice,
    /// `None`: all at once, and a trace as it was.
    pub rate: Option<Rate>,
    /// `None`: the usual number, and all of a trace.
    pub requests: Option<usize>,
    pub seed: u64,
}

/// Requests replayed on the real processes, in which nothing but time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedReplay {
    pub policy: schedule::hybrid::Policy,
    /// Sequences with caches in device memory; `None`: as many as it has room for.
    pub device_slots: Option<u16>,
}

/// Programs to run in which nothing but time passes, and how to say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedRequest {
    pub source: TimedSource,
    /// New tokens; the steps that are measured are one less.
    pub gen_len: u32,
    pub json: bool,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
    pub verbosity: Verbosity,
}

/// Whose times pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimedSource {
    /// A table's, in a row of so many of its layers.
    Tables { tables: PathBuf, layers: usize },
    /// Those of a model on a machine, a file or the name of one.
    Machine { machine: String, described: Box<Described> },
}

/// What to measure of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RatesRequest {
    pub device: u32,
    pub what: RatesWanted,
}

/// Which rates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RatesWanted {
    /// Only how much memory is free.
    Memory,
    /// Copies and matrix products.
    Plain(RateSizes),
    /// Kernels whose names contain the text.
    Kernels(String),
    /// Small copies concurrently with products of matrices with `matrix` rows, in one process and
    /// in two.
    SmallCopies { matrix: u32 },
    /// No rates: multiplies such matrices until stdin ends, while another process measures.
    KeepBusy { matrix: u32 },
}
