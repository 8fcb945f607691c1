//! `coordinator profile`: measures this machine on a model's true shapes through the real workers,
//! keeps the measurement, and shows it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use model::compressed::{Grouped, WeightFormat};
use model::config::{Dtype, ModelConfig};
use model::config_json::check_context;
use model::ops::Op;
use planner::budget::{Limits, Request as PlanRequest};
use planner::policy::{Forms, Policy, Stays};
use profiler::key::Work;
use profiler::{Cache, Cached, Machine, Profile, Request, Threads, cached};
use program::formats::{KvFormat, WeightFormats};
use program::ir::Lane;

use crate::cli::high::ModelChoice;
use crate::cli::values::{Batches, CompressChoice};
use crate::engine::bench::WorkerRunner;
use crate::engine::launch::LaunchOptions;
use crate::exit::Exit;
use crate::job::interrupt::Interrupt;
use crate::opened::Opened;
use crate::report::table::{plain_table, right_aligned};
use crate::session::Usage;
use crate::session::starting::{SPIN_US, compute_cpus};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRequest {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub compress: CompressChoice,
    pub batches: Batches,
    pub prompt_len: u32,
    pub gen_len: u32,
    /// The emulated device with its link's speed, if it has one of its own.
    pub emulated: Option<Option<u64>>,
    pub cpu_threads: Option<u16>,
    pub emulated_threads: Option<u16>,
    pub force: bool,
    pub quiet: bool,
}

/// Profiles, or finds the profile that is kept, and prints it.
///
/// # Errors
/// A sentence for the user.
pub fn run(request: &ProfileRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let opened = Opened::open(&request.model, 0)?;
    let config = &opened.config;
    let context = (request.prompt_len + request.gen_len) as usize;
    check_context(config, context).map_err(|error| Usage(error.to_string()))?;
    let asked = interrupt.clone();
    let mut runner = WorkerRunner {
        options: LaunchOptions {
            weights: opened.weights.clone(),
            cpu_threads: 1,
            gpu_threads: 0,
            link_bytes_per_s: request.emulated.flatten(),
            cpus: compute_cpus(),
            spin_us: if request.emulated.is_some() { 0 } else { SPIN_US },
            durations: None,
            cuda: None,
        },
        interrupt: Arc::new(Box::new(move || asked.asked())),
    };
    let wanted = wanted(request, config)?;
    let bar = bar(request.quiet);
    let cache = Cache::of_user();
    let found = cached(
        cache.as_ref(),
        &wanted,
        &Machine::this(None),
        request.force,
        &mut runner,
        &mut |done, total, what| {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_message(what.to_owned());
        },
    )?;
    bar.finish_and_clear();
    tell(&found, cache.as_ref(), config, request)?;
    Ok(Exit::Done)
}

/// The shapes of the run that is profiled for.
fn wanted(request: &ProfileRequest, config: &ModelConfig) -> anyhow::Result<Request> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()) as u16;
    let gpu = match request.emulated {
        Some(_) => request.emulated_threads.unwrap_or_else(|| (cores / 2).max(1)),
        None => 0,
    };
    let cpu = request.cpu_threads.unwrap_or_else(|| cores.saturating_sub(gpu).max(1));
    let policy = if gpu > 0 { Policy::GpuOnly } else { Policy::CpuOnly };
    // Nothing of the whole model is loaded, so its size is no limit.
    let limits = Limits { dram_bytes: u64::MAX, vram_bytes: None, vram_is_dram: true };
    let forms = Forms::plain(config);
    let plan = PlanRequest {
        config,
        policy: &policy,
        stays: Stays::NONE,
        forms: &forms,
        fuse_attention: true,
        dtype: request.dtype,
        max_prompt: request.prompt_len,
        max_context: request.prompt_len + request.gen_len,
        max_new: request.gen_len,
        limits: &limits,
    }
    .plan(request.batches.count, request.batches.size)?;
    let mut wanted = Request::for_shape(config, &plan.shape, Threads { cpu, gpu });
    if request.compress.weights() {
        let w4 = WeightFormat::Grouped(Grouped::W4);
        wanted.weight_formats.push(WeightFormats::with_layers(config, w4));
    }
    if request.compress.kv() {
        wanted.kv_formats.push(KvFormat::Four);
    }
    Ok(wanted)
}

fn bar(quiet: bool) -> ProgressBar {
    let shown = std::io::stderr().is_terminal() && !quiet;
    let bar = if shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("profiling {wide_bar} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

fn tell(
    found: &Cached,
    cache: Option<&Cache>,
    config: &ModelConfig,
    request: &ProfileRequest,
) -> anyhow::Result<()> {
    let profile = &found.profile;
    if !request.quiet {
        match &found.measured_because {
            Some(reason) => eprintln!(
                "measured in {:.1} s: {reason}",
                profile.measurements.took_ms as f64 / 1e3
            ),
            None => eprintln!("from the cache; --force measures again"),
        }
        if let Some(cache) = cache {
            eprintln!("{}", cache.path(&profile.fingerprint).display());
        }
    }
    if let Some(error) = &found.not_stored {
        eprintln!("{error}");
    }
    std::io::stdout().write_all(shown(profile, config, request.batches.size).as_bytes())?;
    Ok(())
}

/// Decode's operations at the batch's rows and the longest measured context, alone and beside
/// transfers, and the sweep.
fn shown(profile: &Profile, config: &ModelConfig, batch_size: u16) -> String {
    let mut rows: BTreeMap<&str, [Option<f64>; 4]> = BTreeMap::new();
    for measured in &profile.measurements.work {
        if ![0, u32::from(batch_size)].contains(&measured.point.rows) {
            continue;
        }
        let (op, column) = match (measured.key.work, measured.key.lane) {
            (Work::Compute { op, chunk: None, weights: WeightFormat::Plain, kv }, lane)
                if kv != Some(KvFormat::Four) =>
            {
                match (lane, measured.beside.as_slice()) {
                    (Lane::CpuCompute, []) => (op, 0),
                    (Lane::CpuCompute, [Lane::H2dWeights]) => (op, 1),
                    (Lane::GpuCompute, []) => (op, 2),
                    _ => continue,
                }
            }
            (Work::CopyWeights { op, weights: WeightFormat::Plain }, _)
                if measured.beside.is_empty() =>
            {
                (op, 3)
            }
            _ => continue,
        };
        let name = op.name(config.family);
        rows.entry(name).or_default()[column] = Some(measured.time.median_ns / 1e6);
    }
    let around = [Op::Embed].iter().chain(config.layer_ops());
    let order = around.chain(&[Op::Attention, Op::FinalNorm, Op::Head, Op::Sample]);
    let mut table = plain_table();
    table.set_header(["op", "cpu ms", "cpu beside h2d ms", "device ms", "h2d ms"]);
    for name in order.map(|op| op.name(config.family)) {
        let cell = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
        if let Some(times) = rows.get(name) {
            table.add_row(std::iter::once(name.to_owned()).chain(times.map(cell)));
        }
    }
    right_aligned(&mut table, 1..5);
    let mut text = format!("{table}\n");
    for sweep in &profile.measurements.sweep {
        let curve: Vec<String> = sweep
            .curve
            .iter()
            .map(|point| format!("{} {:.3} ms", point.threads, point.time.median_ns / 1e6))
            .collect();
        let _ = writeln!(
            text,
            "{} ({}) over threads: {}; best {}",
            sweep.class,
            sweep.op,
            curve.join(", "),
            sweep.best_threads
        );
    }
    text
}
