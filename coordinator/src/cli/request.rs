//! Validated requests of the commands, with defaults filled in. Those that a session is prepared
//! from are in [`session::request`], and those of the researchers' tools in [`lab::request`].

use std::path::PathBuf;

use batch::score::question::ScoreDetails;
use batch::sink::{IoTarget, OutputMode};
use engine_api::request::Pooling;
use lab::request::{LoadChoice, ServingWorkload};
use model::config::Dtype;
use quantizer::file_type::FileType;
use server::config::ServerOptions;
use session::request::{ModelChoice, PlanWorkload, SessionOptions};
use session::values::{BatchesChoice, QuantizedChoice};

use super::values::StagedFormat;

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

/// Request of `serve`: a model to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeRequest {
    pub options: SessionOptions,
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
    /// Pooling of embeddings; `None`: that of the model's files.
    pub pooling: Option<Pooling>,
    pub server: ServerOptions,
}

/// Request of `quantize`: a model to write as a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizeRequest {
    pub model: ModelChoice,
    pub output: PathBuf,
    pub file_type: FileType,
    /// Text whose inputs of linears weigh the columns of matrices.
    pub calibrate: Option<PathBuf>,
    /// Number of threads; `None`: one for each CPU.
    pub threads: Option<u16>,
    /// An existing output is replaced.
    pub overwrites: bool,
    pub quiet: bool,
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
    pub options: SessionOptions,
    pub input: IoTarget,
    pub output: IoTarget,
    pub mode: OutputMode,
    /// Number of tokens of a text's window; `None`: the model's positions, up to a maximum.
    pub context: Option<u32>,
    /// Number of tokens from one window of a text to the next; `None`: half of a window.
    pub stride: Option<u32>,
    pub details: ScoreDetails,
    /// Number of sequences computed at a time; `None`: as many as fit.
    pub slots: Option<u16>,
    /// File for a summary of all scores.
    pub summary: Option<PathBuf>,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
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

/// A benchmark on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchmarkPlan {
    pub options: SessionOptions,
    pub batches: BatchesChoice,
    pub prompt_len: u32,
    pub gen_len: u32,
}

/// Source of costs.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanSource {
    /// Measurements of this machine, for a benchmark on it.
    ThisMachine(Box<BenchmarkPlan>),
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
