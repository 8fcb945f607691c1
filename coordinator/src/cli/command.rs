//! Validated command: combinations of arguments are checked, and defaults are filled in.

use std::path::PathBuf;

use batch::input::InputFormat;
use batch::sink::IoTarget;
use clap_complete::Shell;
use openai::body::defaults::Defaults;
use planner::policy::name::PolicyName;
use planner::split::parse_chunking;
use workers::device::RateSizes;

use super::args::{CliArgs, PlanArgs, RunArgs, SubcommandArgs};
use super::bench_serve::bench_serve;
use super::outputs::{parse_io_target, resolve_output};
use super::plan_serve::{load_choice, plan_serve};
use super::profile::profile;
use super::prompt_cache::{PromptCacheArgs, cache};
use super::quantize::quantize;
use super::report::report;
use super::request::{
    BenchmarkPlan, CacheRequest, PlanRequest, PlanSource, PullRequest, QuantizeRequest,
    ReportRequest, ScoreRequest, ServeRequest, StageRequest, Template,
};
use super::score_request::convert_score;
use super::serve_request::convert_serve;
use super::session_options::SessionArgs;
use super::shared::{ModelArgs, PlacementArgs};
use super::speculation::SpeculationArgs;
use super::stage::{NvmeArgs, stage};
use super::usage_error::UsageError;
use lab::request::{
    BenchServeRequest, RateKind, RatesRequest, ServingWorkload, TimedRequest, TimedSource,
};
use session::request::{
    BatchJobRequest, ModelChoice, PlanWorkload, ProfileRequest, RunRequest, RunTask, Verbosity,
};
use session::values::{Batches, BatchesChoice, CompressChoice, DeviceChoice};

/// Default number of tokens of a benchmark's prompts.
pub const DEFAULT_PROMPT_LEN: u32 = 512;
/// Default number of new tokens of a benchmark's sequences.
pub const DEFAULT_GEN_LEN: u32 = 32;
/// Default number of layers in timed emulation, each with the times of the table's layer.
pub const DEFAULT_TIMED_LAYERS: u32 = 8;

/// Command with its validated arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Run(Box<RunRequest>),
    /// `profile`: measures the machine.
    Profile(Box<ProfileRequest>),
    /// `stage`: writes weights to NVMe drives, verifies or lists them.
    Stage(Box<StageRequest>),
    /// Timed emulation: runs a table's layers or a described machine's steps without computing
    /// anything.
    Timed(Box<TimedRequest>),
    /// `pull`: fetches a model.
    Pull(PullRequest),
    /// `quantize`: writes a GGUF file with fewer bits.
    Quantize(QuantizeRequest),
    /// `serve`: answers requests of HTTP clients.
    Serve(Box<ServeRequest>),
    /// `cache`: lists or removes stored prompt prefixes.
    Cache(CacheRequest),
    /// `report`: writes a report as an HTML page.
    Report(ReportRequest),
    /// `score`: computes log-probabilities of texts.
    Score(Box<ScoreRequest>),
    /// `bench-serve`: measures a server under load.
    BenchServe(Box<BenchServeRequest>),
    /// `plan`: shows the chosen placement and its predicted cost without running it.
    Plan(Box<PlanRequest>),
    /// `formats`: describes all files by example.
    Formats,
    /// `completions`: prints a shell's completion script.
    Completions(Shell),
    /// `man`: prints the page of a command or of the program.
    Man(Option<String>),
    /// `man --to`: writes all pages into a folder.
    ManPages(PathBuf),
    /// `doctor`: examines this machine.
    Doctor {
        json: bool,
    },
    /// Hidden: checks whether this process can open device memory of another process.
    OpenDeviceMemory {
        device: u32,
        handle: String,
    },
    /// Hidden: reads a page of staged weights to device memory of another process.
    ReadToDevice {
        device: u32,
        handle: String,
        staging: PathBuf,
    },
    /// Hidden: measures basic rates of a CUDA device.
    DeviceRates(RatesRequest),
    /// Hidden: runs this process as a tokenizer.
    Text {
        channel: i32,
    },
    /// Hidden: runs this process as a worker.
    Worker {
        role: String,
        channel: i32,
    },
}

impl Command {
    /// Validates the parsed arguments.
    ///
    /// # Errors
    /// Arguments that contradict each other, or that this machine or version does not support.
    pub fn from_args(args: CliArgs) -> Result<Command, UsageError> {
        match args.command {
            Some(SubcommandArgs::Text { channel }) => Ok(Command::Text { channel }),
            Some(SubcommandArgs::Worker { role, channel }) => Ok(Command::Worker { role, channel }),
            Some(SubcommandArgs::OpenDeviceMemory { device, handle }) => {
                Ok(Command::OpenDeviceMemory { device, handle })
            }
            Some(SubcommandArgs::ReadToDevice { device, handle, staging }) => {
                Ok(Command::ReadToDevice { device, handle, staging })
            }
            Some(SubcommandArgs::DeviceRates {
                device,
                memory,
                copy,
                matrix,
                kernels,
                small_copies,
                keep_busy,
            }) => {
                let defaults = RateSizes::default();
                let sizes = RateSizes {
                    copy_bytes: copy.map_or(defaults.copy_bytes, |bytes| bytes as usize),
                    matrix: matrix.unwrap_or(defaults.matrix),
                };
                // Such a product takes about half a millisecond on a large device.
                let matrix_rows = matrix.unwrap_or(4096);
                let kind = match (memory, kernels) {
                    (true, _) => RateKind::Memory,
                    _ if keep_busy => RateKind::KeepBusy { matrix: matrix_rows },
                    _ if small_copies => RateKind::SmallCopies { matrix: matrix_rows },
                    (false, Some(name)) => RateKind::Kernels(name),
                    (false, None) => RateKind::Basic(sizes),
                };
                Ok(Command::DeviceRates(RatesRequest { device, kind }))
            }
            Some(SubcommandArgs::Pull { model, revision, files, quiet }) => {
                Ok(Command::Pull(PullRequest { model, revision, files, quiet }))
            }
            Some(SubcommandArgs::Quantize(args)) => Ok(Command::Quantize(quantize(args))),
            Some(SubcommandArgs::Formats) => Ok(Command::Formats),
            Some(SubcommandArgs::Completions { shell }) => Ok(Command::Completions(shell)),
            Some(SubcommandArgs::Man { to: Some(folder), .. }) => Ok(Command::ManPages(folder)),
            Some(SubcommandArgs::Man { command, to: None }) => Ok(Command::Man(command)),
            Some(SubcommandArgs::Doctor { json }) => Ok(Command::Doctor { json }),
            Some(SubcommandArgs::Stage(args)) => Ok(Command::Stage(Box::new(stage(*args)))),
            Some(SubcommandArgs::Serve(args)) => {
                Ok(Command::Serve(Box::new(convert_serve(*args)?)))
            }
            Some(SubcommandArgs::Cache(args)) => Ok(Command::Cache(cache(args))),
            Some(SubcommandArgs::Report(args)) => Ok(Command::Report(report(args))),
            Some(SubcommandArgs::Score(args)) => {
                Ok(Command::Score(Box::new(convert_score(*args)?)))
            }
            Some(SubcommandArgs::BenchServe(args)) => {
                Ok(Command::BenchServe(Box::new(bench_serve(*args))))
            }
            Some(SubcommandArgs::Profile(args)) => Ok(Command::Profile(Box::new(profile(*args)?))),
            Some(SubcommandArgs::Plan(args)) => Ok(Command::Plan(Box::new(plan_request(*args)?))),
            None if args.run.tables.is_some() || args.run.machine.is_some() => {
                Ok(Command::Timed(Box::new(timed_request(args.run)?)))
            }
            None => Ok(Command::Run(Box::new(run_request(args.run)?))),
        }
    }
}

fn plan_request(args: PlanArgs) -> Result<PlanRequest, UsageError> {
    let (json, chart) = (args.json, args.chart.clone());
    let template = match (args.machine_template, args.table_template) {
        (true, _) => Some(Template::Machine),
        (_, true) => Some(Template::Table),
        _ => None,
    };
    if let Some(template) = template {
        return Ok(PlanRequest { source: PlanSource::Template(template), json, chart });
    }
    if let Some(flag) = args.speculation.flag()
        && (args.machine.is_none() || args.serving.serve)
    {
        return Err(UsageError::DraftsWithoutMachine { flag });
    }
    let (tables, costs) = (args.tables.clone(), args.serving.costs.clone());
    let source = match (tables, costs, args.model.is_some()) {
        (Some(tables), ..) => PlanSource::Tables(tables),
        (None, Some(costs), _) => {
            PlanSource::MeasuredServer { costs, load: Box::new(load_choice(&args.serving)) }
        }
        (None, None, false) => return Err(UsageError::PlanWithoutModel),
        (None, None, true) => match (args.machine.clone(), args.compare.clone()) {
            (Some(machine), _) if args.serving.serve => {
                if chart.is_some() && args.serving.timed.is_none() {
                    return Err(UsageError::ChartWithoutReplay);
                }
                PlanSource::Serving { machine, serving: Box::new(serving_plan(args)?) }
            }
            (Some(machine), _) => PlanSource::Machine { machine, workload: plan_workload(args)? },
            (None, machines) if !machines.is_empty() => {
                PlanSource::Compare { machines, workload: plan_workload(args)? }
            }
            _ => PlanSource::ThisMachine(Box::new(benchmark_plan(args)?)),
        },
    };
    Ok(PlanRequest { source, json, chart })
}

/// Returns the workload to simulate for serving on a described machine.
fn serving_plan(args: PlanArgs) -> Result<ServingWorkload, UsageError> {
    let model = ModelChoice {
        positions: args.positions.map(|positions| positions as usize),
        ..planned_model(args.model, args.layers)?
    };
    Ok(plan_serve(model, args.dtype.dtype(), args.serving))
}

fn planned_model(name: Option<String>, layers: Option<u32>) -> Result<ModelChoice, UsageError> {
    let layers = layers.map(|layers| layers as usize);
    Ok(ModelChoice::config_only(name.ok_or(UsageError::PlanWithoutModel)?, layers))
}

/// Returns the workload to plan on described machines.
fn plan_workload(args: PlanArgs) -> Result<Box<PlanWorkload>, UsageError> {
    Ok(Box::new(PlanWorkload {
        model: ModelChoice {
            positions: args.positions.map(|positions| positions as usize),
            ..planned_model(args.model, args.layers)?
        },
        dtype: args.dtype.dtype(),
        compress: args
            .compress
            .map(|choice| choice.0)
            .filter(|choice| *choice != CompressChoice::Auto),
        batches: args.batches,
        prompt_len: args.lengths.prompt_len,
        gen_len: args.lengths.gen_len,
        policy: args.policy,
        chunking: args.split_chunks.as_deref().map(parse_chunking).transpose()?,
        routing: args.routing.unwrap_or_default().0,
        speculation: args.speculation.planned(args.acceptance)?,
    }))
}

/// Returns the benchmark to plan on this machine.
fn benchmark_plan(args: PlanArgs) -> Result<BenchmarkPlan, UsageError> {
    let session_args = SessionArgs {
        of_model: ModelArgs {
            model: args.model,
            // Only the configuration is read; weights need not exist.
            dummy_weights: true,
            layers: args.layers,
            dtype: args.dtype,
            compress: args.compress.unwrap_or_default(),
            ..ModelArgs::default()
        },
        placement: PlacementArgs {
            device: args.device,
            policy: Some(args.policy),
            split_chunks: args.split_chunks,
            prefill_chunk: args.prefill_chunk,
            vram: args.vram,
            dram: args.dram,
            ..PlacementArgs::default()
        },
        nvme: NvmeArgs { routing: args.routing, ..NvmeArgs::default() },
        prompts: PromptCacheArgs::default(),
        speculation: SpeculationArgs::default(),
        positions: args.positions,
        seed: 0,
        stop_at_eof: false,
        // The result reports everything else.
        verbosity: Verbosity::Progress,
    };
    Ok(BenchmarkPlan {
        options: session_args.into_options()?,
        batches: args.batches,
        prompt_len: args.lengths.prompt_len,
        gen_len: args.lengths.gen_len,
    })
}

fn timed_request(args: RunArgs) -> Result<TimedRequest, UsageError> {
    if args.placement.device != DeviceChoice::Timed {
        let flag = if args.tables.is_some() { "tables" } else { "machine" };
        return Err(UsageError::TimesWithoutTimed { flag });
    }
    let verbosity = verbosity(&args);
    let gen_len = args.gen_len.unwrap_or(DEFAULT_GEN_LEN);
    let (json, report, trace) = (args.json, args.report.clone(), args.trace.clone());
    let layers = args.of_model.layers.map(|layers| layers as usize);
    let source = match (args.tables.clone(), args.machine.clone()) {
        (None, Some(machine)) => {
            TimedSource::Machine { machine, workload: Box::new(timed_workload(args)?) }
        }
        (tables, _) => TimedSource::Tables {
            tables: tables.unwrap_or_default(),
            layers: layers.unwrap_or(DEFAULT_TIMED_LAYERS as usize),
        },
    };
    Ok(TimedRequest { source, gen_len, json, report, trace, verbosity })
}

/// Returns the workload to plan on a described machine for timed emulation.
fn timed_workload(args: RunArgs) -> Result<PlanWorkload, UsageError> {
    if args.speculation.uses_prediction_layer() {
        return Err(UsageError::TimedPredictionLayer);
    }
    Ok(PlanWorkload {
        model: ModelChoice::config_only(
            args.of_model.model.ok_or(UsageError::NoModel)?,
            args.of_model.layers.map(|layers| layers as usize),
        ),
        dtype: args.of_model.dtype.dtype(),
        compress: Some(args.of_model.compress.0).filter(|choice| *choice != CompressChoice::Auto),
        batches: args.batches.unwrap_or(BatchesChoice::Fixed(Batches { count: 1, size: 32 })),
        prompt_len: args.prompt_len.unwrap_or(DEFAULT_PROMPT_LEN),
        gen_len: args.gen_len.unwrap_or(DEFAULT_GEN_LEN),
        policy: args.placement.policy.unwrap_or(PolicyName::Auto),
        chunking: args.placement.split_chunks.as_deref().map(parse_chunking).transpose()?,
        routing: args.nvme.routing.unwrap_or_default().0,
        speculation: args.speculation.planned(args.acceptance)?,
    })
}

const fn verbosity(args: &RunArgs) -> Verbosity {
    match (args.quiet, args.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, 0) => Verbosity::Normal,
        (false, _) => Verbosity::Verbose,
    }
}

fn run_request(args: RunArgs) -> Result<RunRequest, UsageError> {
    if args.json {
        return Err(UsageError::JsonWithoutTables);
    }
    let task = run_task(&args)?;
    let input = match &task {
        RunTask::Requests(requests) => Some(&requests.input),
        RunTask::Benchmark { .. } => None,
    };
    if args.prompts.prompt_cache.is_some() && input.is_none() {
        return Err(UsageError::PromptsWithoutInput);
    }
    if args.speculation.max_drafts() > 0 && input.is_none() {
        return Err(UsageError::SpeculationWithoutInput);
    }
    if args.stop_at_eof && input == Some(&IoTarget::Standard) {
        return Err(UsageError::RepeatedStdin);
    }
    let session_args = SessionArgs {
        verbosity: verbosity(&args),
        of_model: args.of_model,
        placement: args.placement,
        nvme: args.nvme,
        prompts: args.prompts,
        speculation: args.speculation,
        positions: None,
        seed: args.seed,
        stop_at_eof: args.stop_at_eof,
    };
    Ok(RunRequest {
        options: session_args.into_options()?,
        batches: args.batches,
        task,
        report: args.report,
        trace: args.trace,
    })
}

fn run_task(args: &RunArgs) -> Result<RunTask, UsageError> {
    let Some(input) = &args.input else {
        return Ok(RunTask::Benchmark {
            prompt_len: args.prompt_len.unwrap_or(DEFAULT_PROMPT_LEN),
            gen_len: args.gen_len.unwrap_or(DEFAULT_GEN_LEN),
        });
    };
    let (output, mode) = resolve_output(args.output.as_ref(), args.resume, args.force)?;
    let is_text = InputFormat::from_target(&parse_io_target(input)) == InputFormat::Text;
    if args.system.is_some() && is_text && !args.chat {
        return Err(UsageError::SystemWithoutChat);
    }
    Ok(RunTask::Requests(Box::new(BatchJobRequest {
        input: parse_io_target(input),
        output,
        mode,
        chat: args.chat,
        chats: args.chats.options(),
        pooling: args.pooling,
        max_tokens: args.max_tokens,
        defaults: Defaults {
            temperature: args.temperature,
            top_p: args.top_p,
            stop: args.stop.clone(),
            system: args.system.clone(),
            json_schema: None,
        },
        json_schema: args.json_schema.clone(),
        ignore_unknown_fields: args.ignore_unknown_fields,
    })))
}
