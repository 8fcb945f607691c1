//! Arguments as parsed by clap, not yet validated; see [`super::high`]. Doc comments of arguments
//! are the text of `--help`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use planner::policy::by_name::PolicyName;

use super::bench_serve::LowBenchServe;
use super::chats::LowChats;
use super::help;
use super::plan_serve::LowPlanServe;
use super::profile::LowProfile;
use super::prompt_cache::{LowCache, LowPrompts};
use super::report::LowReport;
use super::score::LowScore;
use super::serve::LowServe;
use super::shared::{LowLengths, LowModel, LowPlacement};
use super::stage::{LowNvme, LowStage};
use super::values::{
    BatchesChoice, CompressChoice, DeviceChoice, DtypeChoice, parse_batches_choice, parse_device,
    parse_policy, parse_repository, parse_size, parse_temperature, parse_top_p,
};

/// Runs a language model too large for the GPU on GPU and CPU together.
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
pub struct Low {
    #[command(subcommand)]
    pub command: Option<LowCommand>,
    #[command(flatten)]
    pub run: LowRun,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum LowCommand {
    /// Say which placement is best and why, and run nothing
    #[command(after_long_help = help::AFTER_PLAN)]
    Plan(Box<LowPlan>),
    /// Measure this machine on the true shapes of a model, and keep the measurement
    #[command(after_long_help = help::AFTER_PROFILE)]
    Profile(Box<LowProfile>),
    /// Write a model's weights to NVMe drives, from which runs read what memory has no room for
    #[command(after_long_help = help::AFTER_STAGE)]
    Stage(Box<LowStage>),
    /// Fetch a model from the Hugging Face hub, or another, to where --model ORG/NAME finds it
    #[command(after_long_help = help::AFTER_PULL)]
    Pull {
        /// The model, as org/name
        #[arg(value_name = "ORG/NAME", value_parser = parse_repository)]
        model: String,
        /// Branch, tag or commit [default: main]
        #[arg(long, value_name = "REVISION")]
        revision: Option<String>,
        /// A file of the repository, once for each; of a GGUF file in parts any part [default: a
        /// checkpoint in safetensors with what describes it, else the only GGUF file]
        #[arg(long = "file", value_name = "FILE")]
        files: Vec<String>,
        /// Say nothing but where it is
        #[arg(long)]
        quiet: bool,
    },
    /// Answer requests of clients as they come, in the form of OpenAI's API
    #[command(after_long_help = help::AFTER_SERVE)]
    Serve(Box<LowServe>),
    /// Look after the beginnings of prompts that --prompt-cache keeps
    #[command(subcommand)]
    Cache(LowCache),
    /// Turn a run's report into a page for a browser, alone or beside another one
    Report(LowReport),
    /// Say what a model makes of texts: log-probabilities of continuations, and perplexity
    #[command(after_long_help = help::AFTER_SCORE)]
    Score(Box<LowScore>),
    /// Measure a server under load: requests at the times of a schedule, however long others take
    #[command(after_long_help = help::AFTER_BENCH_SERVE)]
    BenchServe(Box<LowBenchServe>),
    /// Describe all files by example: input, output, report, tables, machines
    Formats,
    /// Print what a shell needs to complete this program's arguments
    #[command(after_long_help = help::AFTER_COMPLETIONS)]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print a page for man, as in: coordinator man serve | man -l -
    Man {
        /// The page of a command [default: the program's]
        command: Option<String>,
        /// Write all pages, of the program and of its commands, into this folder
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        to: Option<PathBuf>,
    },
    /// Say what this machine has and lacks, and what each absence costs
    Doctor {
        /// Say it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Opens the device memory that another process exported, and says by its exit code whether it
    /// can; started by doctor, never by hand
    #[command(hide = true)]
    OpenDeviceMemory {
        /// Number of the device
        device: u32,
        /// The handle, in hexadecimal digits
        handle: String,
    },
    /// Read a page of staged weights to device memory that another process exported; for a run
    #[command(hide = true)]
    ReadToDevice {
        /// Number of the device
        device: u32,
        /// The handle, in hexadecimal digits
        handle: String,
        /// The folder of the staging
        staging: PathBuf,
    },
    /// Plain rates of a CUDA device, as JSON; for the GPU bench
    #[command(hide = true)]
    DeviceRates {
        /// Number of the device
        device: u32,
        /// Only how much memory is free
        #[arg(long)]
        memory: bool,
        /// Bytes of a copy
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        copy: Option<u64>,
        /// Rows, width and depth of a matrix product
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=32768))]
        matrix: Option<u32>,
        /// This program's kernels instead, those whose names contain NAME; a line of JSON each
        #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
        kernels: Option<String>,
        /// Small copies instead, beside a device that computes, in one process and in two
        #[arg(long)]
        small_copies: bool,
        /// Nothing: the device computes until standard input ends
        #[arg(long, conflicts_with = "small_copies")]
        keep_busy: bool,
    },
    /// A process for a model's tokenizer; started by the coordinator, never by hand
    #[command(hide = true)]
    Text {
        /// Number of the inherited socket to the coordinator
        channel: i32,
    },
    /// A worker process; started by the coordinator, never by hand
    #[command(hide = true)]
    Worker {
        /// Which worker
        role: String,
        /// Number of the inherited socket to the coordinator
        channel: i32,
    },
}

/// Arguments of the main command.
#[derive(Debug, Default, Args)]
pub struct LowRun {
    #[command(flatten)]
    pub of_model: LowModel,

    /// No model: real processes and programs in which every operation lasts as long as this table
    /// of measured times says; needs --device emulated:timed
    #[arg(long, value_name = "FILE", help_heading = "Model", conflicts_with_all = [
        "model", "revision", "dummy_weights", "dtype", "compress", "quantized", "batches", "input",
        "seed", "prompt_len", "policy", "split", "prefill_chunk", "no_fuse", "no_prefix_sharing",
        "cpu_threads", "emulated_threads", "vram", "dram", "prompt_cache",
    ])]
    pub tables: Option<PathBuf>,
    /// The same with the times that a described machine gives the model in the placement that `plan
    /// --machine` chooses; needs --device emulated:timed
    #[arg(long, value_name = "MACHINE", help_heading = "Model", requires = "model")]
    #[arg(conflicts_with_all = [
        "tables", "revision", "quantized", "input", "seed", "split", "prefill_chunk", "no_fuse",
        "no_prefix_sharing", "cpu_threads", "emulated_threads", "vram", "dram", "prompt_cache",
    ])]
    pub machine: Option<String>,

    #[command(flatten)]
    pub nvme: LowNvme,
    #[command(flatten)]
    pub prompts: LowPrompts,
    /// Sequences come as a server's do.
    #[arg(skip)]
    pub is_served: bool,

    /// N batches of B prompts are computed together, and others follow in their places; auto: the
    /// shape of highest predicted throughput [default: 1xB, the largest B up to 32 that fits
    /// memory]
    #[arg(
        long,
        value_name = "NxB",
        value_parser = parse_batches_choice,
        allow_hyphen_values = true,
        help_heading = "Work"
    )]
    pub batches: Option<BatchesChoice>,
    /// Requests to answer: .jsonl (OpenAI batch lines or {"prompt": ...}), .txt (a prompt a line),
    /// - is stdin. Without it a benchmark runs
    #[arg(long, value_name = "FILE", help_heading = "Work")]
    pub input: Option<PathBuf>,
    /// Where the answers go; - is stdout [default: -]
    #[arg(long, value_name = "FILE", requires = "input", help_heading = "Work")]
    pub output: Option<PathBuf>,
    /// Go on with an output that an earlier run left; refused where it holds an answer that the
    /// input no longer asks for
    #[arg(long, requires = "output", help_heading = "Work")]
    pub resume: bool,
    /// Overwrite an existing output; with --resume only the answers that are no longer asked for
    #[arg(long, requires = "output", help_heading = "Work")]
    pub force: bool,
    /// Raw prompts become one user message each, in the model's chat template
    #[arg(long, requires = "input", help_heading = "Work")]
    pub chat: bool,
    #[command(flatten)]
    pub chats: LowChats,
    /// New tokens, at most, for requests that do not say [default: 16; for chats 1024]
    #[arg(
        long,
        value_name = "N",
        requires = "input",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Work"
    )]
    pub max_tokens: Option<u32>,
    /// Temperature of .txt and short lines that give none, 0 to 2; 0 is greedy [default: 0]
    #[arg(long, value_name = "T", requires = "input", help_heading = "Work")]
    #[arg(value_parser = parse_temperature)]
    pub temperature: Option<f32>,
    /// top_p of .txt and short lines that give none, above 0, at most 1 [default: 1]
    #[arg(long, value_name = "P", requires = "input", help_heading = "Work")]
    #[arg(value_parser = parse_top_p)]
    pub top_p: Option<f32>,
    /// Stop string of .txt and short lines that give none; more than once for several
    #[arg(long, value_name = "TEXT", requires = "input", help_heading = "Work")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
    /// System message of .txt (with --chat) and short lines that have none
    #[arg(long, value_name = "TEXT", requires = "input", help_heading = "Work")]
    pub system: Option<String>,
    /// JSON Schema that answers to .txt and short lines have, unless a line asks for a form of its
    /// own
    #[arg(long, value_name = "FILE", requires = "input", help_heading = "Work")]
    pub json_schema: Option<PathBuf>,
    /// Leave out fields that are not implemented, or not known, instead of refusing their lines;
    /// they are named once
    #[arg(long, requires = "input", help_heading = "Work")]
    pub ignore_unknown_fields: bool,
    /// Key of sampling, dummy weights and benchmark prompts
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Work")]
    pub seed: u64,
    /// Benchmark: tokens of each prompt [default: 512]
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "input",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Work"
    )]
    pub prompt_len: Option<u32>,
    /// Benchmark: new tokens of each sequence [default: 32]
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "input",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Work"
    )]
    pub gen_len: Option<u32>,

    #[command(flatten)]
    pub placement: LowPlacement,

    /// End as on SIGTERM once stdin ends: for programs that start this one and must not leave it
    /// behind
    #[arg(long, help_heading = "Work")]
    pub stop_at_eof: bool,

    /// Write what was measured as JSON
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub report: Option<PathBuf>,
    /// With --tables or --machine: say it as one JSON object
    #[arg(long, help_heading = "Verbosity")]
    pub json: bool,
    /// Write every instruction as a span, for ui.perfetto.dev
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub trace: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short, conflicts_with = "verbose", help_heading = "Verbosity")]
    pub quiet: bool,
    /// Also say where everything lies, and what runs it
    #[arg(long, short, action = clap::ArgAction::Count, help_heading = "Verbosity")]
    pub verbose: u8,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("served_on").args(["machine", "costs"])))]
pub struct LowPlan {
    /// Measured times of a layer's operations, as JSON; needs no model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "compare", "model"])]
    pub tables: Option<PathBuf>,
    #[arg(long, value_name = "MACHINE", requires = "model", help = help::machine())]
    pub machine: Option<String>,
    /// Machines by description, side by side: throughput, what bounds it, what twice the link, DRAM
    /// or device memory would give, and energy and price where the files have [running]
    #[arg(
        long,
        value_name = "MACHINE,...",
        requires = "model",
        conflicts_with_all = ["machine", "chart"],
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub compare: Vec<String>,
    /// A directory, a .gguf file, org/name in the Hugging Face cache, or a known name like opt-30b
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Only the first LAYERS layers
    #[arg(
        long,
        value_name = "LAYERS",
        conflicts_with = "tables",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub layers: Option<u32>,
    /// Plan as if the model had so many positions, whatever its configuration says: what longer
    /// prompts would take with its shapes. A run is refused beyond the model's own
    #[arg(long, value_name = "N", conflicts_with = "tables")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub positions: Option<u32>,
    /// On this machine: none, auto, cuda:N or emulated, as for a run
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        conflicts_with_all = ["machine", "compare", "tables"],
        value_parser = parse_device
    )]
    pub device: DeviceChoice,
    /// On this machine: device memory to use at most
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["machine", "compare", "tables"],
        value_parser = parse_size
    )]
    pub vram: Option<u64>,
    /// On this machine: host memory to use at most
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["machine", "compare", "tables"],
        value_parser = parse_size
    )]
    pub dram: Option<u64>,
    /// N batches of B sequences; auto: the shape of highest predicted throughput that fits memory
    #[arg(long, value_name = "NxB", default_value = "1x32", value_parser = parse_batches_choice)]
    #[arg(allow_hyphen_values = true)]
    pub batches: BatchesChoice,
    #[command(flatten)]
    pub lengths: LowLengths,
    /// Number format
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: DtypeChoice,
    /// What is kept in 4 bits [default: nothing where that fits, else w4kv4]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub compress: Option<CompressChoice>,
    /// auto, two-split, one-split, gpu-only, resident, cpu-only, lia, lia:spread, flexgen or
    /// flexgen:spread
    #[arg(long, value_name = "POLICY", default_value = "auto", value_parser = parse_policy)]
    pub policy: PolicyName,
    /// Chunks that a split may come between: scores=8 or attention=8, or linears=8 for those of the
    /// output rows of linears
    #[arg(long, value_name = "KIND=N")]
    pub split_chunks: Option<String>,
    /// On this machine: prompts in chunks of at most N tokens, as for a run
    #[arg(long, value_name = "N", conflicts_with_all = ["machine", "compare", "tables"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_chunk: Option<u32>,
    /// Say it as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the simulated layer as JSON, every operation as a span of a lane
    #[arg(long, value_name = "FILE")]
    pub chart: Option<PathBuf>,
    #[command(flatten)]
    pub serving: LowPlanServe,
    /// Print a machine file to begin with, every field explained; --machine takes it as it is
    #[arg(long, exclusive = true)]
    pub machine_template: bool,
    /// Print a table to begin with; --tables takes it as it is
    #[arg(long, exclusive = true)]
    pub table_template: bool,
}
