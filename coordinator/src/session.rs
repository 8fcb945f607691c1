//! One run from arguments to exit code: find the model, read the requests, plan, prove, launch,
//! run, report.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use planner::budget::{Limits, Request};
use planner::policy::Policy;
use planner::split::parse_split;
use program::plan::Plan;

use crate::benchmark::Benchmark;
use crate::cli::high::{Placement, Run, Telling, Work};
use crate::cli::values::{Batches, DeviceChoice};
use crate::engine::launch::LaunchOptions;
use crate::engine::{Measured, RunEngine, memory};
use crate::exit::Exit;
use crate::job::engine::EngineError;
use crate::job::interrupt::Interrupt;
use crate::job::run::{Demand, Job, JobOptions, ModelFacts};
use crate::job::{fingerprint, progress, prompt};
use crate::opened::Opened;
use crate::report::file::{LaneReport, MapSummary, Predicted, Report};
use crate::report::{table, trace_file::TraceFile};

/// Largest batch that is chosen when `--batches` is left out.
const DEFAULT_BATCH_MAX: u16 = 32;

/// An argument that only turns out to be wrong once the model is known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Runs what the command line asks for.
///
/// # Errors
/// A sentence for the user.
pub fn run(run: &Run, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let opened = Opened::open(&run.model)?;
    match &run.work {
        Work::Benchmark { prompt_len, gen_len } => {
            benchmark(run, &opened, *prompt_len, *gen_len, interrupt)
        }
        Work::Requests { .. } => requests(run, &opened, interrupt),
    }
}

fn requests(run: &Run, opened: &Opened, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let Work::Requests { input, output, mode, chat, max_tokens } = &run.work else {
        unreachable!("called for requests")
    };
    let config = &opened.config;
    let options = JobOptions {
        input: input.clone(),
        output: output.clone(),
        mode: *mode,
        chat: *chat,
        max_tokens: *max_tokens,
        seed: run.seed,
    };
    let facts = ModelFacts {
        name: config.name.clone(),
        system_fingerprint: fingerprint::system_fingerprint(
            config,
            &opened.weights_identity,
            run.dtype,
            "none",
            run.seed,
        ),
        limits: prompt::Limits {
            context: config.max_positions,
            vocab_size: config.vocab_size,
            sliding_window: config.sliding_window,
        },
        codec: opened.codec(),
    };
    let job = Job::prepare(&options, facts)?;
    let quiet = run.telling == Telling::Quiet;
    let asked = interrupt.clone();
    let Some(demand) = job.demand() else {
        let summary = job.run(None, progress::for_stderr(true).as_mut(), &move || asked.asked())?;
        eprintln!("{summary}");
        return Ok(summary.exit());
    };
    let plan = plan(run, opened, demand)?;
    let lengths = (demand.max_prompt as u32, demand.max_new);
    let mut engine = start(run, opened, plan, interrupt)?;
    let summary =
        job.run(Some(&mut engine), progress::for_stderr(quiet).as_mut(), &move || asked.asked())?;
    finish(run, engine, lengths)?;
    eprintln!("{summary}");
    Ok(summary.exit())
}

fn benchmark(
    run: &Run,
    opened: &Opened,
    prompt_len: u32,
    gen_len: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let context = (prompt_len + gen_len) as usize;
    if context > opened.config.max_positions {
        return Err(Usage(format!(
            "--prompt-len {prompt_len} and --gen-len {gen_len} make {context} positions; {} has {}",
            opened.config.name, opened.config.max_positions
        ))
        .into());
    }
    let demand = Demand {
        sequences: run.batches.map_or(usize::from(DEFAULT_BATCH_MAX), |batches| {
            usize::from(batches.count) * usize::from(batches.size)
        }),
        max_prompt: prompt_len as usize,
        max_new: gen_len,
        max_context: context,
    };
    let plan = plan(run, opened, demand)?;
    let benchmark = Benchmark {
        sequences: usize::from(plan.shape.batches) * usize::from(plan.shape.batch_size),
        prompt_len,
        gen_len,
        vocab_size: opened.config.vocab_size,
        seed: run.seed,
    };
    let mut engine = start(run, opened, plan, interrupt)?;
    let quiet = run.telling == Telling::Quiet;
    match benchmark.run(&mut engine, progress::for_stderr(quiet).as_mut()) {
        Ok(()) => {}
        Err(EngineError::Interrupted) => return Ok(Exit::Interrupted),
        Err(error) => return Err(error.into()),
    }
    finish(run, engine, (prompt_len, gen_len))?;
    Ok(Exit::Done)
}

fn plan(run: &Run, opened: &Opened, demand: Demand) -> anyhow::Result<Plan> {
    let config = &opened.config;
    let policy = match &run.placement {
        Placement::CpuOnly => Policy::CpuOnly,
        Placement::GpuOnly => Policy::GpuOnly,
        Placement::TwoSplit { split, chunking } => Policy::TwoSplit {
            split: parse_split(split, config, *chunking).map_err(|e| Usage(e.to_string()))?,
            chunking: *chunking,
        },
    };
    let limits = Limits {
        dram_bytes: run.dram_bytes.unwrap_or_else(memory::available_bytes),
        vram_bytes: run.vram_bytes,
        vram_is_dram: true,
    };
    let request = Request {
        config,
        policy: &policy,
        fuse_attention: run.fuse_attention,
        dtype: run.dtype,
        max_prompt: demand.max_prompt as u32,
        max_context: demand.max_context as u32,
        max_new: demand.max_new,
        limits: &limits,
    };
    let batches = match run.batches {
        Some(batches) => batches,
        None => {
            let most = demand.sequences.clamp(1, usize::from(DEFAULT_BATCH_MAX)) as u16;
            Batches { count: 1, size: request.largest_batch(1, most)?.unwrap_or(1) }
        }
    };
    let plan = request.plan(batches.count, batches.size)?;
    program::validate::validate(&plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    Ok(plan)
}

fn start(
    run: &Run,
    opened: &Opened,
    plan: Plan,
    interrupt: &Interrupt,
) -> anyhow::Result<RunEngine> {
    let threads = threads(run, plan.map.uses_gpu());
    let options = LaunchOptions {
        weights: opened.weights.clone(),
        cpu_threads: threads.0,
        gpu_threads: threads.1,
        link_bytes_per_s: match run.device {
            DeviceChoice::Emulated { link_bytes_per_s, .. } => link_bytes_per_s,
            _ => None,
        },
    };
    let trace = match &run.trace {
        Some(path) => Some(
            TraceFile::create(path, &plan.lanes())
                .with_context(|| format!("the trace file {}", path.display()))?,
        ),
        None => None,
    };
    let mut progress = LoadBar::new(run.telling == Telling::Quiet);
    let asked = interrupt.clone();
    let engine = RunEngine::start(
        plan,
        &options,
        trace,
        Box::new(move || asked.asked()),
        &mut |done, total| {
            progress.update(done, total);
            true
        },
    )?;
    progress.end();
    Ok(engine)
}

/// Threads of the cpu worker and of the emulated device; together no more than the cores unless
/// asked for, since threads that share a core only disturb each other.
fn threads(run: &Run, uses_gpu: bool) -> (u16, u16) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()) as u16;
    let gpu = if uses_gpu { run.emulated_threads.unwrap_or((cores / 2).max(1)) } else { 0 };
    (run.cpu_threads.unwrap_or(cores.saturating_sub(gpu).max(1)), gpu)
}

/// Ends the workers and tells what was measured.
fn finish(run: &Run, engine: RunEngine, lengths: (u32, u32)) -> anyhow::Result<()> {
    let begun = Instant::now();
    let plan = engine.plan().clone();
    let allocations = engine.allocations();
    let measured = engine.finish().context("the trace file")?;
    let mut report = report(run, &plan, &measured, lengths);
    report.allocations_after_ready =
        allocations.into_iter().map(|(role, count)| (role.name().to_owned(), count)).collect();
    if let Some(path) = &run.report {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("the report {}", path.display()))?;
    }
    if run.telling != Telling::Quiet {
        // Results may go to stdout; tables never do then.
        let text = table::render(&report);
        match run.work {
            Work::Benchmark { .. } => write!(std::io::stdout(), "{text}").or_else(quiet_pipe)?,
            Work::Requests { .. } => eprint!("{text}"),
        }
    }
    if run.telling >= Telling::Verbose {
        eprintln!("workers left after {:.3} s", begun.elapsed().as_secs_f64());
    }
    Ok(())
}

fn quiet_pipe(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

fn report(run: &Run, plan: &Plan, measured: &Measured, lengths: (u32, u32)) -> Report {
    let (prefill_s, decode_s) = (measured.prefill.as_secs_f64(), measured.decode.as_secs_f64());
    let rate = |tokens: u64, seconds: f64| (tokens > 0).then(|| tokens as f64 / seconds);
    let totals = &measured.totals;
    let with_sum = |peaks: &crate::engine::Peaks| {
        let mut bytes = peaks.by_process_bytes.clone();
        bytes.insert("sum".to_owned(), peaks.sum_bytes);
        bytes
    };
    let (cpu_threads, gpu_threads) = threads(run, plan.map.uses_gpu());
    let mut threads = BTreeMap::from([("cpu worker".to_owned(), cpu_threads)]);
    if plan.map.uses_gpu() {
        threads.insert("gpu worker".to_owned(), gpu_threads);
    }
    Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: plan.config.name.clone(),
        dtype: plan.shape.dtype.name().to_owned(),
        batches: plan.shape.batches,
        batch_size: plan.shape.batch_size,
        prompt_len: lengths.0,
        gen_len: lengths.1,
        device: if plan.map.uses_gpu() { "emulated" } else { "none" }.to_owned(),
        policy: plan.map.policy.clone(),
        device_map: MapSummary::new(&plan.config, &plan.map),
        threads,
        kernel_variants: measured.kernel_variants.clone(),
        groups: measured.groups,
        load_s: measured.load.as_secs_f64(),
        prefill_s,
        decode_s,
        total_s: prefill_s + decode_s,
        prefill_tokens: measured.prefill_tokens,
        decode_tokens: measured.decode_tokens,
        generated_tokens: measured.generated_tokens,
        prefill_tokens_per_s: rate(measured.prefill_tokens, prefill_s),
        decode_tokens_per_s: rate(measured.decode_tokens, decode_s),
        total_tokens_per_s: rate(measured.generated_tokens, prefill_s + decode_s),
        predicted: measured.prediction.map(|prediction| Predicted {
            source: "this-run".to_owned(),
            prefill_s: None,
            decode_s: prediction.predicted_ns / 1e9,
            measured_decode_s: prediction.measured_ns / 1e9,
        }),
        lanes: totals
            .busy_ns
            .iter()
            .map(|(lane, ns)| (lane.name().to_owned(), LaneReport { busy_s: *ns as f64 / 1e9 }))
            .collect(),
        overlap: totals.overlap(),
        time_outside: totals.time_outside(),
        streamed_weight_bytes: totals.streamed_weight_bytes,
        streamed_kv_bytes: totals.streamed_kv_bytes,
        peak_pss_bytes: with_sum(&measured.peaks),
        load_peak_pss_bytes: with_sum(&measured.load_peaks),
        allocations_after_ready: BTreeMap::new(),
        lost_spans: totals.lost,
    }
}

/// Loading, on a terminal.
struct LoadBar {
    bar: ProgressBar,
}

impl LoadBar {
    fn new(quiet: bool) -> LoadBar {
        let hidden = quiet || !std::io::stderr().is_terminal();
        let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let style = "loading {wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, ETA {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        LoadBar { bar }
    }

    fn update(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Files of a model's weights, for its identity.
pub fn weight_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    files
}
