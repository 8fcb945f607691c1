//! `coordinator profile`: measures this machine on a model's true shapes through the real workers,
//! keeps the measurement, and shows it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use model::compressed::{Grouped, WeightFormat};
use model::config::ModelConfig;
use model::config_json::check_context;
use model::ops::Op;
use planner::budget::{Limits, Request as PlanRequest};
use planner::policy::{Formats, Placement, Policy};
use profiler::key::Work;
use profiler::{Profile, Request};
use program::formats::{KvFormat, WeightFormats};
use program::topology::LaneId;

use crate::cli::request::ProfileRequest;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::report::table::{plain_table, right_aligned};
use crate::setup::hardware::Hardware;
use crate::setup::model::Opened;
use crate::setup::profile;
use crate::setup::usage::Usage;

/// Profiles, or finds the profile that is kept, and prints it.
///
/// # Errors
/// A sentence for the user.
pub fn run(request: &ProfileRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let opened = Opened::open(&request.model, 0)?;
    let config = &opened.config;
    let context = (request.prompt_len + request.gen_len) as usize;
    check_context(config, context).map_err(|error| Usage(error.to_string()))?;
    let hardware = Hardware::of_profile(request);
    let shapes = profile_request(request, config, hardware)?;
    let obtained = profile::obtain(&shapes, hardware, request.force, request.quiet, interrupt)?;
    let text = shown(&obtained.profile, config, request.batches.size);
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(Exit::Done)
}

/// The shapes of the run that is profiled for.
fn profile_request(
    request: &ProfileRequest,
    config: &ModelConfig,
    hardware: Hardware,
) -> anyhow::Result<Request> {
    // Nothing of the whole model is loaded, so its size is no limit.
    let limits =
        Limits { dram_bytes: u64::MAX, vram_bytes: None, vram_is_dram: true, device_scratch: None };
    let mut formats = Formats::plain(config);
    if request.compress.weights() {
        formats.weights = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
    }
    if request.compress.kv() {
        formats.kv = KvFormat::Four;
    }
    let shape = PlanRequest {
        config,
        placement: &Placement::of(Policy::CpuOnly),
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
    }
    .shape(request.batches.count, request.batches.size);
    Ok(profile::request(config, &shape, &formats, hardware))
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
            (Work::Compute { op, chunk: None, .. }, lane) => {
                match (lane, measured.beside.as_slice()) {
                    (LaneId::CPU_COMPUTE, []) => (op, 0),
                    (LaneId::CPU_COMPUTE, [LaneId::H2D_WEIGHTS]) => (op, 1),
                    (LaneId::GPU_COMPUTE, []) => (op, 2),
                    _ => continue,
                }
            }
            (Work::CopyWeights { op, .. }, _) if measured.beside.is_empty() => (op, 3),
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
