//! Validated command: combinations of arguments are checked, and defaults are filled in.

use std::path::PathBuf;

use clap_complete::Shell;
use planner::policy::by_name::PolicyName;
use planner::split::parse_chunking;
use workers::device::RateSizes;
use workers::shared::protocol::MemoryNodes;

use super::bench_serve::bench_serve;
use super::cuda;
use super::low::{Low, LowCommand, LowPlan, LowRun};
use super::outputs::{mode_of, place_of};
use super::plan_serve::{load, plan_serve};
use super::profile::profile;
use super::prompt_cache::cache;
use super::report::report;
use super::request::{
    BenchServeRequest, CacheRequest, Described, ModelChoice, PlacementChoice, PlanRequest,
    ProfileRequest, PullRequest, RatesRequest, RatesWanted, ReportRequest, Requests, Run,
    ScoreRequest, ServeRequest, ServingPlan, Source, StageRequest, Template, TimedRequest,
    TimedSource, Tuned, Verbosity, Work,
};
use super::scoring::scoring;
use super::selecting::select;
use super::serving::serving;
use super::shared::{LowModel, LowPlacement};
use super::stage::stage;
use super::usage_error::UsageError;
use super::values::{Batches, BatchesChoice, CompressChoice, DeviceChoice, QuantizedChoice};
use crate::job::input::Format;
use crate::job::sink::Place;
use crate::openai::body::defaults::Defaults;

/// Default number of tokens of a benchmark's prompts.
pub const PROMPT_LEN: u32 = 512;
/// Default number of new tokens of a benchmark's sequences.
pub const GEN_LEN: u32 = 32;
/// Default number of layers in timed emulation, each with the times of the table's layer.
pub const TIMED_LAYERS: u32 = 8;

/// Command with its validated arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Run(Box<Run>),
    /// `profile`: measures the machine.
    Profile(Box<ProfileRequest>),
    /// `stage`: writes weights to NVMe drives, verifies or lists them.
    Stage(Box<StageRequest>),
    /// Timed emulation: runs a table's layers or a described machine's steps without computing
    /// anything.
    Timed(Box<TimedRequest>),
    /// `pull`: fetches a model.
    Pull(PullRequest),
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
    pub fn from_low(low: Low) -> Result<Command, UsageError> {
        match low.command {
            Some(LowCommand::Text { channel }) => Ok(Command::Text { channel }),
            Some(LowCommand::Worker { role, channel }) => Ok(Command::Worker { role, channel }),
            Some(LowCommand::OpenDeviceMemory { device, handle }) => {
                Ok(Command::OpenDeviceMemory { device, handle })
            }
            Some(LowCommand::ReadToDevice { device, handle, staging }) => {
                Ok(Command::ReadToDevice { device, handle, staging })
            }
            Some(LowCommand::DeviceRates {
                device,
                memory,
                copy,
                matrix,
                kernels,
                small_copies,
                keep_busy,
            }) => {
                let plain = RateSizes::default();
                let sizes = RateSizes {
                    copy_bytes: copy.map_or(plain.copy_bytes, |bytes| bytes as usize),
                    matrix: matrix.unwrap_or(plain.matrix),
                };
                // Such a product takes about half a millisecond on a large device.
                let beside = matrix.unwrap_or(4096);
                let what = match (memory, kernels) {
                    (true, _) => RatesWanted::Memory,
                    _ if keep_busy => RatesWanted::KeepBusy { matrix: beside },
                    _ if small_copies => RatesWanted::SmallCopies { matrix: beside },
                    (false, Some(name)) => RatesWanted::Kernels(name),
                    (false, None) => RatesWanted::Plain(sizes),
                };
                Ok(Command::DeviceRates(RatesRequest { device, what }))
            }
            Some(LowCommand::Pull { model, revision, files, quiet }) => {
                Ok(Command::Pull(PullRequest { model, revision, files, quiet }))
            }
            Some(LowCommand::Formats) => Ok(Command::Formats),
            Some(LowCommand::Completions { shell }) => Ok(Command::Completions(shell)),
            Some(LowCommand::Man { to: Some(folder), .. }) => Ok(Command::ManPages(folder)),
            Some(LowCommand::Man { command, to: None }) => Ok(Command::Man(command)),
            Some(LowCommand::Doctor { json }) => Ok(Command::Doctor { json }),
            Some(LowCommand::Stage(low)) => Ok(Command::Stage(Box::new(stage(*low)))),
            Some(LowCommand::Serve(low)) => {
                let (low, meant) = serving(*low);
                let request = meant(run(low)?);
                match request.owners.is_some() && request.run.device == DeviceChoice::None {
                    true => Err(UsageError::HostAttentionWithoutDevice),
                    false => Ok(Command::Serve(Box::new(request))),
                }
            }
            Some(LowCommand::Cache(low)) => Ok(Command::Cache(cache(low))),
            Some(LowCommand::Report(low)) => Ok(Command::Report(report(low))),
            Some(LowCommand::Score(low)) => {
                let (low, meant) = scoring(*low)?;
                Ok(Command::Score(Box::new(meant(run(low)?))))
            }
            Some(LowCommand::BenchServe(low)) => {
                Ok(Command::BenchServe(Box::new(bench_serve(*low))))
            }
            Some(LowCommand::Profile(low)) => Ok(Command::Profile(Box::new(profile(*low)?))),
            Some(LowCommand::Plan(low)) => Ok(Command::Plan(Box::new(plan(*low)?))),
            None if low.run.tables.is_some() || low.run.machine.is_some() => {
                Ok(Command::Timed(Box::new(timed(low.run)?)))
            }
            None => Ok(Command::Run(Box::new(run(low.run)?))),
        }
    }
}

fn plan(low: LowPlan) -> Result<PlanRequest, UsageError> {
    let (json, chart) = (low.json, low.chart.clone());
    let template = match (low.machine_template, low.table_template) {
        (true, _) => Some(Template::Machine),
        (_, true) => Some(Template::Table),
        _ => None,
    };
    if let Some(template) = template {
        return Ok(PlanRequest { source: Source::Template(template), json, chart });
    }
    let (tables, costs) = (low.tables.clone(), low.serving.costs.clone());
    let source = match (tables, costs, low.model.is_some()) {
        (Some(tables), ..) => Source::Tables(tables),
        (None, Some(costs), _) => Source::Served { costs, load: Box::new(load(&low.serving)) },
        (None, None, false) => return Err(UsageError::NothingToPlan),
        (None, None, true) => match (low.machine.clone(), low.compare.clone()) {
            (Some(machine), _) if low.serving.serve => {
                if chart.is_some() && low.serving.timed.is_none() {
                    return Err(UsageError::ChartWithoutReplay);
                }
                Source::Serving { machine, serving: Box::new(serving_plan(low)?) }
            }
            (Some(machine), _) => Source::Machine { machine, described: described(low)? },
            (None, machines) if !machines.is_empty() => {
                Source::Compare { machines, described: described(low)? }
            }
            _ => {
                // The result reports everything else.
                let verbosity = Verbosity::Progress;
                Source::Here(Box::new(Run { verbosity, ..run(here(low))? }))
            }
        },
    };
    Ok(PlanRequest { source, json, chart })
}

/// Returns the workload to simulate for serving on a described machine.
fn serving_plan(low: LowPlan) -> Result<ServingPlan, UsageError> {
    let model = ModelChoice {
        positions: low.positions.map(|positions| positions as usize),
        ..configuration(low.model.ok_or(UsageError::NothingToPlan)?, low.layers)
    };
    Ok(plan_serve(model, low.dtype.dtype(), low.serving))
}

/// Returns a model of which only the configuration is read; its weights need not exist.
fn configuration(name: String, layers: Option<u32>) -> ModelChoice {
    let layers = layers.map(|layers| layers as usize);
    ModelChoice { name, revision: None, dummy_weights: true, layers, positions: None }
}

/// Returns the workload to plan on described machines.
fn described(low: LowPlan) -> Result<Box<Described>, UsageError> {
    Ok(Box::new(Described {
        model: ModelChoice {
            positions: low.positions.map(|positions| positions as usize),
            ..configuration(low.model.ok_or(UsageError::NothingToPlan)?, low.layers)
        },
        dtype: low.dtype.dtype(),
        compress: low.compress.filter(|choice| *choice != CompressChoice::Auto),
        batches: low.batches,
        prompt_len: low.lengths.prompt_len,
        gen_len: low.lengths.gen_len,
        policy: low.policy,
        chunking: low.split_chunks.as_deref().map(parse_chunking).transpose()?,
    }))
}

/// Returns the arguments of the run to plan on this machine.
fn here(low: LowPlan) -> LowRun {
    LowRun {
        of_model: LowModel {
            model: low.model,
            // Only the configuration is read; weights need not exist.
            dummy_weights: true,
            layers: low.layers,
            positions: low.positions,
            dtype: low.dtype,
            compress: low.compress.unwrap_or(CompressChoice::Auto),
            ..LowModel::default()
        },
        batches: Some(low.batches),
        prompt_len: Some(low.lengths.prompt_len),
        gen_len: Some(low.lengths.gen_len),
        placement: LowPlacement {
            device: low.device,
            policy: Some(low.policy),
            split_chunks: low.split_chunks,
            prefill_chunk: low.prefill_chunk,
            vram: low.vram,
            dram: low.dram,
            ..LowPlacement::default()
        },
        ..LowRun::default()
    }
}

fn timed(low: LowRun) -> Result<TimedRequest, UsageError> {
    if low.placement.device != DeviceChoice::Timed {
        let flag = if low.tables.is_some() { "tables" } else { "machine" };
        return Err(UsageError::TimesWithoutTimed { flag });
    }
    let verbosity = verbosity(&low);
    let gen_len = low.gen_len.unwrap_or(GEN_LEN);
    let (json, report, trace) = (low.json, low.report.clone(), low.trace.clone());
    let layers = low.of_model.layers.map(|layers| layers as usize);
    let source = match (low.tables.clone(), low.machine.clone()) {
        (None, Some(machine)) => {
            TimedSource::Machine { machine, described: Box::new(timed_on_machine(low)?) }
        }
        (tables, _) => TimedSource::Tables {
            tables: tables.unwrap_or_default(),
            layers: layers.unwrap_or(TIMED_LAYERS as usize),
        },
    };
    Ok(TimedRequest { source, gen_len, json, report, trace, verbosity })
}

/// Returns the workload to plan on a described machine for timed emulation.
fn timed_on_machine(low: LowRun) -> Result<Described, UsageError> {
    Ok(Described {
        model: configuration(low.of_model.model.ok_or(UsageError::NoModel)?, low.of_model.layers),
        dtype: low.of_model.dtype.dtype(),
        compress: Some(low.of_model.compress).filter(|choice| *choice != CompressChoice::Auto),
        batches: low.batches.unwrap_or(BatchesChoice::Given(Batches { count: 1, size: 32 })),
        prompt_len: low.prompt_len.unwrap_or(PROMPT_LEN),
        gen_len: low.gen_len.unwrap_or(GEN_LEN),
        policy: low.placement.policy.unwrap_or(PolicyName::Auto),
        chunking: low.placement.split_chunks.as_deref().map(parse_chunking).transpose()?,
    })
}

const fn verbosity(low: &LowRun) -> Verbosity {
    match (low.quiet, low.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, 0) => Verbosity::Normal,
        (false, _) => Verbosity::Verbose,
    }
}

fn run(low: LowRun) -> Result<Run, UsageError> {
    if low.json {
        return Err(UsageError::JsonWithoutTables);
    }
    let work = work(&low)?;
    let is_job = matches!(work, Work::Requests(_));
    if low.prompts.prompt_cache.is_some() && !(is_job || low.is_served) {
        return Err(UsageError::PromptsWithoutInput);
    }
    if low.prompts.prompt_cache.is_some() && (low.report.is_some() || low.trace.is_some()) {
        return Err(UsageError::PromptsWithReport);
    }
    if low.prompts.prompt_cache.is_some() && low.of_model.kv_select.is_some() {
        return Err(UsageError::SelectWithPrompts);
    }
    if low.stop_at_eof
        && matches!(&work, Work::Requests(requests) if requests.input == Place::Standard)
    {
        return Err(UsageError::StdinTwice);
    }
    let device = device(&low)?;
    let placement = placement(&low, device)?;
    let kv_select = select(&low.of_model, device, !low.placement.no_fuse)?;
    let verbosity = verbosity(&low);
    Ok(Run {
        model: ModelChoice {
            name: low.of_model.model.ok_or(UsageError::NoModel)?,
            revision: low.of_model.revision,
            dummy_weights: low.of_model.dummy_weights,
            layers: low.of_model.layers.map(|layers| layers as usize),
            positions: low.of_model.positions.map(|positions| positions as usize),
        },
        dtype: low.of_model.dtype.dtype(),
        compress: low.of_model.compress,
        quantized: low
            .of_model
            .quantized
            .unwrap_or_else(|| QuantizedChoice::usual(low.of_model.dtype.dtype())),
        kv_select,
        batches: low.batches,
        work,
        seed: low.seed,
        placement,
        chunking: low.placement.split_chunks.as_deref().map(parse_chunking).transpose()?,
        fuse_attention: !low.placement.no_fuse,
        shares_prompts: !low.placement.no_prefix_sharing,
        prefill_chunk: low.placement.prefill_chunk,
        cpu_threads: low.placement.cpu_threads,
        tuned: Tuned::default(),
        emulated_threads: low.placement.emulated_threads,
        vram_bytes: match device {
            DeviceChoice::Emulated { vram_bytes, .. } => low.placement.vram.or(vram_bytes),
            DeviceChoice::Cuda(index) => {
                Some(cuda::vram_bytes(index, low.placement.vram, low.nvme.direct_drives()))
            }
            _ => low.placement.vram,
        },
        device,
        dram_bytes: low.placement.dram,
        nodes: MemoryNodes { weights: low.placement.weights_nodes, kv: low.placement.kv_nodes },
        nvme: low.nvme.nvme,
        nvme_ops: low.nvme.nvme_ops.unwrap_or_default(),
        nvme_direct: low.nvme.nvme_direct.unwrap_or_default(),
        prompt_cache: low.prompts.meant(),
        report: low.report,
        trace: low.trace,
        stop_at_eof: low.stop_at_eof,
        verbosity,
    })
}

fn work(low: &LowRun) -> Result<Work, UsageError> {
    let Some(input) = &low.input else {
        return Ok(Work::Benchmark {
            prompt_len: low.prompt_len.unwrap_or(PROMPT_LEN),
            gen_len: low.gen_len.unwrap_or(GEN_LEN),
        });
    };
    let (output, mode) = mode_of(low.output.as_ref(), low.resume, low.force)?;
    let is_text = Format::of(&place_of(input)) == Format::Text;
    if low.system.is_some() && is_text && !low.chat {
        return Err(UsageError::SystemWithoutChat);
    }
    Ok(Work::Requests(Box::new(Requests {
        input: place_of(input),
        output,
        mode,
        chat: low.chat,
        chats: low.chats.options(),
        max_tokens: low.max_tokens,
        defaults: Defaults {
            temperature: low.temperature,
            top_p: low.top_p,
            stop: low.stop.clone(),
            system: low.system.clone(),
            json_schema: None,
        },
        json_schema: low.json_schema.clone(),
        ignore_unknown_fields: low.ignore_unknown_fields,
    })))
}

/// Returns the device of a run, after checking the arguments that depend on it.
fn device(low: &LowRun) -> Result<DeviceChoice, UsageError> {
    let device = cuda::existing(low.placement.device)?;
    match device {
        DeviceChoice::Emulated { vram_bytes: Some(_), .. } if low.placement.vram.is_some() => {
            Err(UsageError::VramTwice)
        }
        DeviceChoice::None if low.placement.emulated_threads.is_some() => {
            Err(UsageError::EmulatedThreads)
        }
        DeviceChoice::None if low.placement.vram.is_some() => Err(UsageError::Vram),
        _ => Ok(device),
    }
}

fn placement(low: &LowRun, device: DeviceChoice) -> Result<PlacementChoice, UsageError> {
    let has_device = device != DeviceChoice::None;
    if let Some(split) = &low.placement.split {
        match low.placement.policy {
            Some(PolicyName::TwoSplit) | None => {}
            Some(other) => return Err(UsageError::SplitWithPolicy { policy: other.name() }),
        }
        if !has_device {
            return Err(UsageError::SplitWithoutDevice);
        }
        let chunking = low.placement.split_chunks.as_deref().map(parse_chunking).transpose()?;
        return Ok(PlacementChoice::Split { split: split.clone(), chunking });
    }
    if low.placement.split_chunks.is_some() && !has_device {
        return Err(UsageError::SplitWithoutDevice);
    }
    match (low.placement.policy, has_device) {
        (Some(policy), true) => Ok(PlacementChoice::Named(policy)),
        (None, true) => Ok(PlacementChoice::Named(PolicyName::Auto)),
        (Some(PolicyName::CpuOnly | PolicyName::Auto) | None, false) => {
            Ok(PlacementChoice::Named(PolicyName::CpuOnly))
        }
        (Some(policy), false) => Err(UsageError::NoDevice { policy: policy.name() }),
    }
}
