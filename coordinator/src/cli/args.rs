//! Arguments as parsed by clap, not yet validated; see [`super::command`]. Doc comments of
//! arguments are the text of `--help`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use engine_api::request::Pooling;
use planner::policy::name::PolicyName;

use super::bench_serve::BenchServeArgs;
use super::chats::ChatArgs;
use super::help;
use super::plan_serve::PlanServeArgs;
use super::profile::ProfileArgs;
use super::prompt_cache::{CacheArgs, PromptCacheArgs};
use super::quantize::QuantizeArgs;
use super::report::ReportArgs;
use super::score::ScoreArgs;
use super::serve::ServeArgs;
use super::shared::{LengthArgs, ModelArgs, PlacementArgs};
use super::speculation::{AcceptanceArgs, SpeculationArgs};
use super::stage::{NvmeArgs, StageArgs};
use super::values::{
    DtypeChoice, NamedChoice, parse_batches_choice, parse_device, parse_policy, parse_pooling,
    parse_repository, parse_size, parse_temperature, parse_top_p,
};
use session::values::{BatchesChoice, CompressChoice, DeviceChoice};

/// Run language models too large for the GPU, on GPU and CPU together.
#[derive(Debug, Parser)]
#[command(
    name = "coordinator",
    version,
    about = help::ABOUT,
    after_long_help = help::AFTER,
    after_help = help::AFTER_SHORT,
    args_conflicts_with_subcommands = true,
    max_term_width = 100
)]
pub struct CliArgs {
    #[command(subcommand)]
    pub command: Option<SubcommandArgs>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum SubcommandArgs {
    /// Show the chosen placement and its predicted cost without running it
    #[command(after_long_help = help::AFTER_PLAN)]
    Plan(Box<PlanArgs>),
    /// Measure this machine with the actual shapes of a model, and store the profile
    #[command(after_long_help = help::AFTER_PROFILE)]
    Profile(Box<ProfileArgs>),
    /// Write a model's weights to NVMe drives, from which runs read weights that do not fit in
    /// memory
    #[command(after_long_help = help::AFTER_STAGE)]
    Stage(Box<StageArgs>),
    /// Download a model from the Hugging Face hub, or another hub, for use as --model ORG/NAME
    #[command(after_long_help = help::AFTER_PULL)]
    Pull {
        /// Model to download, as org/name
        #[arg(value_name = "ORG/NAME", value_parser = parse_repository)]
        model: String,
        /// Branch, tag or commit [default: main]
        #[arg(long, value_name = "REVISION")]
        revision: Option<String>,
        /// File of the repository to download; can be repeated. Any part of a split GGUF file
        /// selects all of its parts [default: a safetensors checkpoint with its configuration,
        /// tokenizer and chat template, otherwise the only GGUF file]
        #[arg(long = "file", value_name = "FILE")]
        files: Vec<String>,
        /// Print only the model's location
        #[arg(long)]
        quiet: bool,
    },
    /// Convert a model to a GGUF file with fewer bits per weight
    #[command(after_long_help = help::AFTER_QUANTIZE)]
    Quantize(QuantizeArgs),
    /// Serve a model through an OpenAI-compatible API
    #[command(after_long_help = help::AFTER_SERVE)]
    Serve(Box<ServeArgs>),
    /// List or remove prompt prefixes that --prompt-cache stored
    #[command(subcommand)]
    Cache(CacheArgs),
    /// Convert a run's report to an HTML page, alone or compared with another report
    Report(ReportArgs),
    /// Compute log-probabilities of continuations, or the perplexity of a text
    #[command(after_long_help = help::AFTER_SCORE)]
    Score(Box<ScoreArgs>),
    /// Measure a server under load, with requests sent on schedule regardless of response times
    #[command(after_long_help = help::AFTER_BENCH_SERVE)]
    BenchServe(Box<BenchServeArgs>),
    /// Describe all file formats by example: input, output, report, tables, machines
    Formats,
    /// Print a shell completion script
    #[command(after_long_help = help::AFTER_COMPLETIONS)]
    Completions {
        /// Shell to print the script for
        shell: Shell,
    },
    /// Print a man page, as in: coordinator man serve | man -l -
    Man {
        /// Command to describe [default: the program itself]
        command: Option<String>,
        /// Write the pages of the program and of all its commands to this directory
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        to: Option<PathBuf>,
    },
    /// Show which features this machine has and lacks, and the cost of each missing one
    Doctor {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Open device memory that another process exported, and report success by the exit code;
    /// started by doctor, never by hand
    #[command(hide = true)]
    OpenDeviceMemory {
        /// Index of the device
        device: u32,
        /// Handle, in hexadecimal digits
        handle: String,
    },
    /// Read a page of staged weights to device memory that another process exported; started by a
    /// run, never by hand
    #[command(hide = true)]
    ReadToDevice {
        /// Index of the device
        device: u32,
        /// Handle, in hexadecimal digits
        handle: String,
        /// Directory of the staged weights
        staging: PathBuf,
    },
    /// Measure basic rates of a CUDA device, as JSON; for the GPU benchmark
    #[command(hide = true)]
    DeviceRates {
        /// Index of the device
        device: u32,
        /// Report only the amounts of free and total memory
        #[arg(long)]
        memory: bool,
        /// Size of a copy
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        copy: Option<u64>,
        /// Rows, columns and depth of a matrix product
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=32768))]
        matrix: Option<u32>,
        /// Measure this program's kernels whose names contain NAME instead, with a line of JSON for
        /// each
        #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
        kernels: Option<String>,
        /// Measure small copies during computation on the device instead, in one process and in two
        #[arg(long)]
        small_copies: bool,
        /// Measure nothing: keep the device computing until stdin ends
        #[arg(long, conflicts_with = "small_copies")]
        keep_busy: bool,
    },
    /// Run a process for a model's tokenizer; started by the coordinator, never by hand
    #[command(hide = true)]
    Text {
        /// File descriptor of the inherited socket to the coordinator
        channel: i32,
    },
    /// Run a worker process; started by the coordinator, never by hand
    #[command(hide = true)]
    Worker {
        /// Role of the worker
        role: String,
        /// File descriptor of the inherited socket to the coordinator
        channel: i32,
    },
}

/// Arguments of the main command.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub of_model: ModelArgs,

    /// Run real processes and programs without a model; each operation takes its time from this
    /// table of measurements. Requires --device emulated:timed
    #[arg(long, value_name = "FILE", help_heading = "Model", conflicts_with_all = [
        "model", "revision", "dummy_weights", "dtype", "compress", "quantized", "batches", "input",
        "seed", "activations", "prompt_len", "policy", "split", "prefill_chunk", "no_fuse",
        "no_prefix_sharing", "cpu_threads", "emulated_threads", "vram", "dram", "prompt_cache",
        "speculate", "draft_model",
    ])]
    pub tables: Option<PathBuf>,
    /// Run real processes and programs without computing anything; each operation takes the time
    /// that a described machine needs for it, in the placement that `plan --machine` chooses for
    /// the model. Requires --device emulated:timed
    #[arg(long, value_name = "MACHINE", help_heading = "Model", requires = "model")]
    #[arg(conflicts_with_all = [
        "tables", "revision", "quantized", "activations", "input", "seed", "split", "prefill_chunk",
        "no_fuse", "no_prefix_sharing", "cpu_threads", "emulated_threads", "vram", "dram",
        "prompt_cache", "draft_model",
    ])]
    pub machine: Option<String>,

    #[command(flatten)]
    pub nvme: NvmeArgs,
    #[command(flatten)]
    pub prompts: PromptCacheArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub acceptance: AcceptanceArgs,

    /// Compute N batches of B prompts at a time, and replace completed prompts with the next ones;
    /// auto selects the shape with the highest predicted throughput [default: 1xB, with the largest
    /// B up to 32 that fits in memory]
    #[arg(
        long,
        value_name = "NxB",
        value_parser = parse_batches_choice,
        allow_hyphen_values = true,
        help_heading = "Work"
    )]
    pub batches: Option<BatchesChoice>,
    /// Requests to answer: .jsonl (OpenAI batch lines or {"prompt": ...}), .txt (one prompt per
    /// line), or - for stdin. Without --input, a benchmark runs
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub input: Option<PathBuf>,
    /// File for the answers; - is stdout [default: -]
    #[arg(long, value_name = "FILE", requires = "input", help_heading = "Work")]
    pub output: Option<PathBuf>,
    /// Continue the output of an earlier run; refused if it contains an answer that the input no
    /// longer requests
    #[arg(long, requires = "output", help_heading = "Work")]
    pub resume: bool,
    /// Overwrite an existing output; with --resume, only answers that the input no longer requests
    #[arg(long, requires = "output", help_heading = "Work")]
    pub force: bool,
    /// Send each raw prompt as one user message, in the model's chat template
    #[arg(long, requires = "input", help_heading = "Work")]
    pub chat: bool,
    #[command(flatten)]
    pub chats: ChatArgs,
    /// Pooling of embeddings: last (the last token's hidden state) or mean (over all tokens)
    /// [default: as the model's files specify, or else last]
    #[arg(long, value_name = "HOW", value_parser = parse_pooling, requires = "input")]
    #[arg(help_heading = "Work")]
    pub pooling: Option<Pooling>,
    /// Maximum number of new tokens for requests that do not set it [default: 16; chats: 1024]
    #[arg(
        long,
        value_name = "N",
        requires = "input",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Work"
    )]
    pub max_tokens: Option<u32>,
    /// Temperature, from 0 to 2, for .txt prompts and short lines that do not set it; 0 is greedy
    /// [default: 0]
    #[arg(long, value_name = "T", requires = "input", help_heading = "Work")]
    #[arg(value_parser = parse_temperature)]
    pub temperature: Option<f32>,
    /// Nucleus sampling threshold (top_p), above 0 and at most 1, for .txt prompts and short lines
    /// that do not set it [default: 1]
    #[arg(long, value_name = "P", requires = "input", help_heading = "Work")]
    #[arg(value_parser = parse_top_p)]
    pub top_p: Option<f32>,
    /// Stop string for .txt prompts and short lines that do not set any; can be repeated
    #[arg(long, value_name = "TEXT", requires = "input", help_heading = "Work")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// System message for .txt prompts (with --chat) and short lines that have none
    #[arg(long, value_name = "TEXT", requires = "input", help_heading = "Work")]
    pub system: Option<String>,
    /// JSON Schema for answers to .txt prompts and short lines, unless a line specifies its own
    /// output format
    #[arg(long, value_name = "FILE", requires = "input", help_heading = "Work")]
    pub json_schema: Option<PathBuf>,
    /// Ignore unknown and unimplemented fields instead of rejecting their lines; the ignored ones
    /// are listed once
    #[arg(long, requires = "input", help_heading = "Work")]
    pub ignore_unknown_fields: bool,
    /// Seed of sampling, dummy weights and benchmark prompts
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Work")]
    pub seed: u64,
    /// Number of tokens of each prompt in a benchmark [default: 512]
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "input",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Work"
    )]
    pub prompt_len: Option<u32>,
    /// Number of new tokens of each sequence in a benchmark [default: 32]
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "input",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Work"
    )]
    pub gen_len: Option<u32>,

    #[command(flatten)]
    pub placement: PlacementArgs,

    /// Stop as on SIGTERM when stdin reaches its end, so that this process does not outlive the
    /// program that started it
    #[arg(long, help_heading = "Work")]
    pub stop_at_eof: bool,

    /// Write the measurements as JSON
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub report: Option<PathBuf>,
    /// Print the result as one JSON object; requires --tables or --machine
    #[arg(long, help_heading = "Verbosity")]
    pub json: bool,
    /// Write a trace with a span for every instruction, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub trace: Option<PathBuf>,
    /// Print only errors
    #[arg(long, short, conflicts_with = "verbose", help_heading = "Verbosity")]
    pub quiet: bool,
    /// Also print memory use, the placement of operations and data, and the lanes that run them
    #[arg(long, short, action = clap::ArgAction::Count, help_heading = "Verbosity")]
    pub verbose: u8,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("served_on").args(["machine", "costs"])))]
pub struct PlanArgs {
    /// Table of measured times of a layer's operations, as JSON; needs no model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "compare", "model"])]
    pub tables: Option<PathBuf>,
    #[arg(long, value_name = "MACHINE", requires = "model", help = help::machine())]
    pub machine: Option<String>,
    /// Compare described machines by throughput, its bottleneck, the effect of doubling the link,
    /// DRAM bandwidth or device memory, and energy and price for files with [running]
    #[arg(
        long,
        value_name = "MACHINE,...",
        requires = "model",
        conflicts_with_all = ["machine", "chart"],
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub compare: Vec<String>,
    /// Model: a directory, a .gguf file, org/name in the Hugging Face cache, or a known name like
    /// opt-30b
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Use only the first LAYERS layers
    #[arg(
        long,
        value_name = "LAYERS",
        conflicts_with = "tables",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub layers: Option<u32>,
    /// Plan as if the model had N positions, regardless of its configuration, to predict the cost
    /// of longer prompts with its shapes; a run beyond the model's own maximum is refused
    #[arg(long, value_name = "N", conflicts_with = "tables")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub positions: Option<u32>,
    /// Distribution of tokens over experts: even, or the --report of an earlier run, whose counts
    /// prices then use in place of equally likely experts [default: even]
    #[arg(
        long,
        value_name = "even|FILE",
        conflicts_with = "tables",
        value_parser = session::routing_file::parse_routing
    )]
    pub routing: Option<session::routing_file::RoutingChoice>,
    /// Device of this machine: none, auto, cuda:N or emulated, as for a run
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        conflicts_with_all = ["machine", "compare", "tables"],
        value_parser = parse_device
    )]
    pub device: DeviceChoice,
    /// Maximum device memory to use on this machine
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["machine", "compare", "tables"],
        value_parser = parse_size
    )]
    pub vram: Option<u64>,
    /// Maximum host memory to use on this machine
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["machine", "compare", "tables"],
        value_parser = parse_size
    )]
    pub dram: Option<u64>,
    /// N batches of B sequences, or auto for the shape with the highest predicted throughput that
    /// fits in memory
    #[arg(long, value_name = "NxB", default_value = "1x32", value_parser = parse_batches_choice)]
    #[arg(allow_hyphen_values = true)]
    pub batches: BatchesChoice,
    #[command(flatten)]
    pub lengths: LengthArgs,
    /// Number format of weights, activations and KV cache
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: DtypeChoice,
    /// Compress weights to 4 bits, the KV cache to 8 or 4, or both [default: none if that fits in
    /// memory, otherwise the fastest of kv8, w4 and w4kv8 that fits, otherwise of kv4 and w4kv4]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub compress: Option<NamedChoice<CompressChoice>>,
    /// Placement policy: auto, two-split, one-split, gpu-only, resident, cpu-only, ellm, lia,
    /// lia:spread, flexgen or flexgen:spread
    #[arg(long, value_name = "POLICY", default_value = "auto", value_parser = parse_policy)]
    pub policy: PolicyName,
    /// Divide attention, or linears by their output rows, into N chunks between which a split may
    /// fall: scores=8, attention=8 or linears=8
    #[arg(long, value_name = "KIND=N")]
    pub split_chunks: Option<String>,
    /// Compute prompts in chunks of at most N tokens on this machine, as for a run
    #[arg(long, value_name = "N", conflicts_with_all = ["machine", "compare", "tables"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_chunk: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the simulated layer as JSON, with every operation as a span of a lane
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    #[command(flatten)]
    pub serving: PlanServeArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub acceptance: AcceptanceArgs,
    /// Print a machine file to start from, with every field explained; --machine accepts it
    /// unchanged
    #[arg(long, exclusive = true)]
    pub machine_template: bool,
    /// Print a table to start from; --tables accepts it unchanged
    #[arg(long, exclusive = true)]
    pub table_template: bool,
}
