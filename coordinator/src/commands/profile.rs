//! `coordinator profile`: measures the real workers on this machine with a model's true shapes,
//! stores the measurement, and shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use comfy_table::Table;
use model::config::ModelConfig;
use model::config_json::check_context;
use model::ops::Op;
use planner::budget::{MemoryLimits, PlacementRequest as PlanRequest};
use planner::policy::{Formats, Placement, Policy};
use profiler::key::ProfiledWork;
use profiler::profile::{ProfileMeasurements, WorkMeasurement};
use profiler::stat::Stat;
use profiler::{Profile, ProfilingRequest, REPETITIONS_MIN, RehearsalTimes, SkippedPoint};
use program::formats::KvFormat;
use program::map::Phase;
use program::topology::LaneId;

use super::export;
use lab::drive_rates;
use report::plain_table::{plain_table, right_aligned};
use session::argument_error::ArgumentError;
use session::exit::Exit;
use session::formats;
use session::hardware::Hardware;
use session::interrupt::Interrupt;
use session::model::ModelHandle;
use session::output::print_result;
use session::profile;
use session::progress_reporter::ProgressReporter;
use session::request::{ModelChoice, ProfileRequest, Verbosity};
use session::values::{CompressChoice, QuantizedChoice};

/// Measures a profile, or finds the stored one, and prints it.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &ProfileRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let model = open_model(request)?;
    let config = &model.config;
    let context = (request.prompt_len + request.gen_len) as usize;
    check_context(config, context).map_err(|error| ArgumentError(error.to_string()))?;
    let hardware = Hardware::for_profile(request);
    let shapes = profile_request(request, config, default_formats(request, &model), hardware);
    let verbosity = if request.quiet { Verbosity::Quiet } else { Verbosity::Normal };
    let reporter = ProgressReporter::start("profiling", verbosity);
    let obtained = profile::obtain(&shapes, hardware, request.force, &reporter, interrupt)?;
    if let Some(path) = &request.export {
        let exporter = Exporter { request, config, reporter: &reporter, interrupt };
        let with_device = exporter.profile(hardware)?;
        let alone = exporter.profile(Hardware::without_device(request))?;
        export::write(path, request, config, &with_device, &alone)?;
    }
    drop(reporter);
    let mut text = format_profile(&obtained.profile, config, request.batches.size);
    if !request.nvme.is_empty() {
        text += &drive_rates::balance_drives(request, interrupt)?;
    }
    print_result(&text, false)?;
    Ok(Exit::Done)
}

/// Opens the model from its files, which determine what is multiplied; if its weights are not on
/// this machine, opens its shapes alone.
fn open_model(request: &ProfileRequest) -> anyhow::Result<ModelHandle> {
    if !request.dummy_weights {
        let with_weights = ModelChoice { dummy_weights: false, ..request.model.clone() };
        if let Ok(model) = ModelHandle::open(&with_weights, 0) {
            return Ok(model);
        }
    }
    ModelHandle::open(&request.model, 0)
}

/// Returns the formats in which a run keeps weights and KV by default.
fn default_formats(request: &ProfileRequest, model: &ModelHandle) -> Formats {
    let quantized = QuantizedChoice::default_for(request.dtype);
    let mut weights =
        formats::resolve_weight_formats(model, quantized, request.compress.compresses_weights());
    weights.activations = request.activations;
    Formats { weights, ..formats::formats_for_choice(&model.config, request.compress) }
}

/// Measures the profiles of a machine description that is written to a file.
struct Exporter<'a> {
    request: &'a ProfileRequest,
    config: &'a ModelConfig,
    reporter: &'a ProgressReporter,
    interrupt: &'a Interrupt,
}

impl Exporter<'_> {
    /// Returns the profile for the number of threads that runs use.
    fn profile(&self, hardware: Hardware) -> anyhow::Result<Profile> {
        let measure = |hardware| self.measure(hardware).map(Some);
        let best = profile::with_best_threads(self.request.cpu_threads, hardware, measure)?;
        best.map_or_else(|| self.measure(hardware), |(profile, _)| Ok(profile))
    }

    /// Returns the profile for the threads of `hardware`. It includes the rates of uncompressed
    /// weights and KV, which every machine description has.
    fn measure(&self, hardware: Hardware) -> anyhow::Result<Profile> {
        let obtain = |compress, force| {
            let mut formats = formats::formats_for_choice(self.config, compress);
            formats.weights.activations = self.request.activations;
            let shapes = profile_request(self.request, self.config, formats, hardware);
            profile::obtain(&shapes, hardware, force, self.reporter, self.interrupt)
        };
        // The rates with the device have just been measured.
        let force = self.request.force && !hardware.has_device();
        let mut measured = obtain(self.request.compress, force)?.profile;
        let compress = self.request.compress;
        if compress.compresses_weights() || compress.kv_format() != KvFormat::Plain {
            measured.merge_missing(&obtain(CompressChoice::None, self.request.force)?.profile);
        }
        Ok(measured)
    }
}

/// Returns the shapes of the run for which to profile.
fn profile_request(
    request: &ProfileRequest,
    config: &ModelConfig,
    formats: Formats,
    hardware: Hardware,
) -> ProfilingRequest {
    // The whole model is never loaded, so its size is no limit.
    let limits = MemoryLimits {
        dram_bytes: u64::MAX,
        vram_bytes: None,
        vram_is_dram: true,
        slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
        device_scratch: None,
    };
    let shape = PlanRequest {
        config,
        placement: &Placement::from_policy(Policy::CpuOnly),
        formats: &formats,
        fuse_attention: true,
        dtype: request.dtype,
        max_prompt: request.prompt_len,
        shared_prompt: 0,
        max_context: request.prompt_len + request.gen_len,
        max_new: request.gen_len,
        logprobs: 0,
        prefill_chunk: None,
        limits: &limits,
        storage: None,
        routing: None,
    }
    .shape(request.batches.count, request.batches.size);
    profile::profile_request(config, &shape, &formats, hardware)
}

/// Formats the measurements and their uncertainty.
fn format_profile(profile: &Profile, config: &ModelConfig, batch_size: u16) -> String {
    let mut text = "decode of one batch: median in ms ± deviation (samples)\n".to_owned();
    let _ = writeln!(text, "{}", operations_table(profile, config, batch_size));
    for sweep in &profile.measurements.sweep {
        let curve: Vec<String> = sweep
            .curve
            .iter()
            .map(|point| format!("{} {}", point.threads, format_stat(&point.time)))
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
    let (best, current) = (profile.measurements.best_cpu_threads, profile.measurements.threads.cpu);
    if best != current {
        let _ = writeln!(
            text,
            "a layer is faster with {best} CPU threads than with {current}, so runs use {best} \
             unless --cpu-threads is given"
        );
    }
    text + &format_uncertainty(profile, config)
}

/// Returns the operations of decode at the batch's rows and the longest measured context, alone and
/// concurrently with transfers.
fn operations_table(profile: &Profile, config: &ModelConfig, batch_size: u16) -> Table {
    let mut rows: BTreeMap<&str, [Option<Stat>; 4]> = BTreeMap::new();
    for measured in &profile.measurements.work {
        if ![0, u32::from(batch_size)].contains(&measured.point.rows)
            || measured.key.phase == Some(Phase::Prefill)
        {
            continue;
        }
        let (op, column) = match (measured.key.work, measured.key.lane) {
            (ProfiledWork::Compute { op, chunk: None, .. }, lane) => {
                match (lane, measured.concurrent.as_slice()) {
                    (LaneId::CPU_COMPUTE, []) => (op, 0),
                    (LaneId::CPU_COMPUTE, [LaneId::H2D_WEIGHTS]) => (op, 1),
                    (LaneId::GPU_COMPUTE, []) => (op, 2),
                    _ => continue,
                }
            }
            (ProfiledWork::CopyWeights { op, .. }, _) if measured.concurrent.is_empty() => (op, 3),
            _ => continue,
        };
        rows.entry(op.name(config.family)).or_default()[column] = Some(measured.time);
    }
    let around = [Op::Embed].into_iter().chain(config.every_layer_op());
    let order = around.chain([Op::Attention, Op::FinalNorm, Op::Head, Op::Sample]);
    let mut table = plain_table();
    table.set_header(["op", "cpu", "cpu during h2d", "device", "h2d"]);
    for name in order.map(|op| op.name(config.family)) {
        if let Some(times) = rows.get(name) {
            let cells =
                times.iter().map(|time| time.as_ref().map_or_else(|| "-".to_owned(), format_stat));
            table.add_row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    right_aligned(&mut table, 1..5);
    table
}

/// Formats a time in milliseconds, the deviation of its samples, and their number.
fn format_stat(time: &Stat) -> String {
    let (ms, samples) = (time.median_ns / 1e6, time.samples + time.outliers);
    let percent = 100.0 * time.deviation_ns / time.median_ns.max(1.0);
    let decimals = if ms < 0.1 { 5 } else { 3 };
    // A single sample has no spread, which differs from a spread of 0.
    let spread = if samples > 1 { format!(" ±{percent:.0}%") } else { String::new() };
    format!("{ms:.decimals$}{spread} ({samples})")
}

/// Describes the missing and the uncertain measurements.
fn format_uncertainty(profile: &Profile, config: &ModelConfig) -> String {
    let measurements = &profile.measurements;
    let mut text = String::new();
    let has_few_samples = |measured: &&WorkMeasurement| {
        measured.time.samples + measured.time.outliers < REPETITIONS_MIN
    };
    let (isolated, concurrent): (Vec<&WorkMeasurement>, Vec<&WorkMeasurement>) =
        measurements.work.iter().partition(|measured| measured.concurrent.is_empty());
    let count = |times: &[&WorkMeasurement]| times.iter().copied().filter(has_few_samples).count();
    if count(&isolated) + count(&concurrent) > 0 {
        let _ = writeln!(
            text,
            "fewer than {REPETITIONS_MIN} samples: {} times alone, {} during work of other lanes",
            count(&isolated),
            count(&concurrent)
        );
    }
    let disputed = disputed_operations(&isolated, config);
    if !disputed.is_empty() {
        let _ = writeln!(
            text,
            "equal work whose times differed, measured again and given a common time: {disputed}"
        );
    }
    if !measurements.skipped.is_empty() {
        let _ = writeln!(text, "not measured ({}):", measurements.skipped.len());
        let mut points: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for SkippedPoint { what, extent } in &measurements.skipped {
            let point = format!("{} x {}", extent.sequences, extent.positions);
            points.entry(what).or_default().push(point);
        }
        for (what, points) in points {
            let _ = writeln!(text, "  {what}: {} (sequences x positions)", points.join(", "));
        }
    }
    text + &format_run_history(measurements)
}

/// Returns the operations whose times for equal work contradicted each other, by columns of the
/// table.
fn disputed_operations(alone: &[&WorkMeasurement], config: &ModelConfig) -> String {
    let columns = [
        (LaneId::CPU_COMPUTE, "cpu"),
        (LaneId::GPU_COMPUTE, "device"),
        (LaneId::H2D_WEIGHTS, "h2d"),
    ];
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for measured in alone.iter().filter(|measured| measured.disputed) {
        let column = columns.iter().find(|(lane, _)| *lane == measured.key.lane);
        let op = match measured.key.work {
            ProfiledWork::Compute { op, .. } | ProfiledWork::CopyWeights { op, .. } => Some(op),
            _ => None,
        };
        if let (Some((_, column)), Some(op)) = (column, op) {
            names.entry(column).or_default().insert(op.name(config.family));
        }
    }
    let format_column = |(column, names): (&str, BTreeSet<&str>)| {
        format!("{} ({column})", names.into_iter().collect::<Vec<_>>().join(", "))
    };
    names.into_iter().map(format_column).collect::<Vec<_>>().join("; ")
}

/// Describes what was learned after the profile was measured.
fn format_run_history(measurements: &ProfileMeasurements) -> String {
    let mut text = String::new();
    let rehearsals = &measurements.rehearsals;
    if !rehearsals.is_empty() {
        let groups: usize = rehearsals.iter().map(|rehearsal| rehearsal.groups_ns.len()).sum();
        let widest = rehearsals.iter().map(RehearsalTimes::spread).fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "rehearsed: {} placements in {groups} groups, with a spread of at most {:.0}%",
            rehearsals.len(),
            100.0 * widest
        );
    }
    if !measurements.finished.is_empty() {
        let _ = writeln!(text, "finished runs: {}", measurements.finished.len());
    }
    text
}
