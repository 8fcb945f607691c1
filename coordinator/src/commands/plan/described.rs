//! `--machine FILE.toml`: a model and a workload on a machine that need not be at hand.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use model::compressed::{Grouped, WeightFormat};
use model::config::ModelConfig;
use model::config_json::check_context;
use planner::batches::choose as choose_shape;
use planner::budget::{Budget, Limits, PlanError, Request};
use planner::described_run::Run as Predicted;
use planner::described_run::{RunRequest, run};
use planner::layer::closed_form::Candidate;
use planner::layer::search::search;
use planner::layer::steady::{Shape, steady_layer};
use planner::machine::{Machine, Stored, Workload, known, names};
use planner::policy::by_name::{Layer, PolicyName};
use planner::policy::{DeviceResident, Formats, Policy};
use planner::split::Split;
use program::formats::{KvFormat, WeightFormats};
use program::plan::Plan;
use serde_json::json;

use super::chart_file;
use crate::cli::request::{Described, PlanRequest};
use crate::cli::values::{Batches, BatchesChoice, CompressChoice};
use crate::report::{gantt, layer};
use crate::setup::auto_batches::SIZE_MAX;
use crate::setup::model::Opened;
use crate::setup::usage::Usage;

/// A prediction and the plan that shows that it fits.
struct Fitting {
    stored: Stored,
    batches: Batches,
    predicted: Predicted,
    plan: Plan,
    limits: Limits,
}

/// The answer, as text or JSON.
///
/// # Errors
/// A model or machine that is not there, or nothing that fits.
pub(super) fn plan(described: &Described, request: &PlanRequest) -> anyhow::Result<String> {
    let machine = machine(&described.machine)?;
    let opened = Opened::open(&described.model, 0)?;
    let config = &opened.config;
    let context = (described.prompt_len + described.gen_len) as usize;
    check_context(config, context).map_err(|error| Usage(error.to_string()))?;
    let cases: &[Stored] = match described.compress {
        None => &[Stored::PLAIN, Stored::W4KV4],
        Some(choice) => &[Stored { w4: choice.weights(), kv4: choice.kv() }],
    };
    let mut refused = None;
    for stored in cases {
        let Some(batches) = batches(described, &machine, config, *stored)? else { continue };
        match choose(described, &machine, config, *stored, batches)? {
            Ok(found) => return tell(described, &machine, config, &found, request),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let none = || format!("no batch of this model fits {}", machine.name);
    let error = refused.with_context(none)?;
    Err(anyhow::Error::from(error).context(format!("nothing fits {}", machine.name)))
}

/// A description by name or from a file.
fn machine(name: &str) -> anyhow::Result<Machine> {
    let path = Path::new(name);
    match known(name) {
        Some(machine) if !path.exists() => Ok(machine?),
        _ if path.exists() => {
            let text =
                std::fs::read_to_string(path).with_context(|| format!("--machine {name}"))?;
            Machine::from_toml(&text).with_context(|| format!("--machine {name}"))
        }
        _ => {
            let known: Vec<&str> = names().collect();
            let known = known.join(", ");
            Err(Usage(format!(
                "--machine {name}: there is no such file, and the machines that come with the \
             program are {known}"
            ))
            .into())
        }
    }
}

/// The batches that were given, or those of highest predicted throughput; `None` where not even one
/// sequence fits.
fn batches(
    described: &Described,
    machine: &Machine,
    config: &ModelConfig,
    stored: Stored,
) -> anyhow::Result<Option<Batches>> {
    if let BatchesChoice::Given(batches) = described.batches {
        return Ok(Some(batches));
    }
    let sizes = |count: u32, size: u32| (u16::try_from(count).ok()).zip(u16::try_from(size).ok());
    let limits = limits(machine);
    let formats = formats(config, stored);
    let fits = |count: u32, size: u32| {
        let Some((count, size)) = sizes(count, size) else { return false };
        let batches = Batches { count, size };
        let place = Placing { described, config, stored, limits: &limits, batches };
        let fits = |policy: &Policy| place.request(policy, &formats).fits(count, size);
        [Policy::CpuOnly, Policy::GpuOnly].iter().any(|policy| matches!(fits(policy), Ok(true)))
    };
    let rate = |count: u32, size: u32| {
        let (count, size) = sizes(count, size)?;
        let batches = Batches { count, size };
        let runs = predicted(described, machine, config, stored, batches).ok()?;
        runs.first().map(|fastest| fastest.tokens_per_s)
    };
    let best = choose_shape(SIZE_MAX.into(), fits, rate);
    Ok(best
        .and_then(|best| sizes(best.batches, best.batch_size))
        .map(|(count, size)| Batches { count, size }))
}

fn limits(machine: &Machine) -> Limits {
    Limits {
        dram_bytes: machine.dram_bytes(),
        vram_bytes: Some(machine.vram_bytes()),
        vram_is_dram: false,
        device_scratch: None,
    }
}

/// The fastest of the asked policies whose plan fits in this form; the refusal of the last one
/// else.
fn choose(
    described: &Described,
    machine: &Machine,
    config: &ModelConfig,
    stored: Stored,
    batches: Batches,
) -> anyhow::Result<Result<Box<Fitting>, PlanError>> {
    let runs = predicted(described, machine, config, stored, batches)?;
    let limits = limits(machine);
    let place = Placing { described, config, stored, limits: &limits, batches };
    for predicted in &runs {
        if let Some(plan) = place.fitting(predicted)? {
            let predicted = predicted.clone();
            return Ok(Ok(Box::new(Fitting { stored, batches, predicted, plan, limits })));
        }
    }
    let fastest = runs.first().context("no policy has a layer for this workload")?;
    Ok(Err(place.refusal(fastest)?))
}

/// What the asked policies take, the fastest first.
fn predicted(
    described: &Described,
    machine: &Machine,
    config: &ModelConfig,
    stored: Stored,
    batches: Batches,
) -> anyhow::Result<Vec<Predicted>> {
    let workload = Workload {
        batches: u32::from(batches.count),
        batch_size: u32::from(batches.size),
        positions: 0,
        dtype: described.dtype,
        stored,
        chunking: described.chunking,
    };
    let request = RunRequest {
        machine,
        config,
        workload,
        prompt: described.prompt_len,
        gen_len: described.gen_len,
        flexgen_pins: false,
    };
    let names: Vec<PolicyName> = match described.policy {
        PolicyName::Auto => {
            PolicyName::ALL.into_iter().filter(|name| *name != PolicyName::Auto).collect()
        }
        name => vec![name],
    };
    let mut runs = Vec::new();
    for name in names {
        match run(name, &request) {
            Ok(found) => runs.push(found),
            // LIA has no vector for attention in chunks.
            Err(planner::described_run::RunError::NoLayer(_))
                if described.policy == PolicyName::Auto => {}
            Err(error) => return Err(error.into()),
        }
    }
    runs.sort_by(|a, b| b.tokens_per_s.total_cmp(&a.tokens_per_s));
    Ok(runs)
}

fn formats(config: &ModelConfig, stored: Stored) -> Formats {
    let mut formats = Formats::plain(config);
    if stored.w4 {
        formats.weights = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
    }
    if stored.kv4 {
        formats.kv = KvFormat::Four;
    }
    formats
}

/// Compiles predicted layers to see what they need.
struct Placing<'a> {
    described: &'a Described,
    config: &'a ModelConfig,
    stored: Stored,
    limits: &'a Limits,
    batches: Batches,
}

impl Placing<'_> {
    /// The plan of a predicted layer, if it fits.
    fn fitting(&self, predicted: &Predicted) -> Result<Option<Plan>, PlanError> {
        let (policy, formats) = (self.policy(predicted), formats(self.config, self.stored));
        let batches = self.batches;
        self.request(&policy, &formats).fitting(batches.count, batches.size)
    }

    /// Why a predicted layer does not fit, with the batch that would.
    fn refusal(&self, predicted: &Predicted) -> anyhow::Result<PlanError> {
        let (policy, formats) = (self.policy(predicted), formats(self.config, self.stored));
        let batches = self.batches;
        let refused = self.request(&policy, &formats).plan(batches.count, batches.size);
        refused.err().context("a plan fits that was found not to fit")
    }

    fn request<'b>(&'b self, policy: &'b Policy, formats: &'b Formats) -> Request<'b> {
        let described = self.described;
        Request {
            config: self.config,
            policy,
            resident: DeviceResident::NONE,
            formats,
            fuse_attention: true,
            dtype: described.dtype,
            max_prompt: described.prompt_len,
            shared_prompt: 0,
            max_context: described.prompt_len + described.gen_len,
            max_new: described.gen_len,
            logprobs: 0,
            prefill_chunk: None,
            limits: self.limits,
        }
    }

    fn policy(&self, predicted: &Predicted) -> Policy {
        let ops = predicted.table.ops.len();
        match &predicted.decode_layer.layer {
            Layer::Interval(Candidate { interval: (start, end), .. }) => match end - start {
                0 => Policy::CpuOnly,
                count if count == ops => Policy::GpuOnly,
                _ => Policy::TwoSplit {
                    split: Split { start: *start, end: *end },
                    chunking: self.described.chunking,
                },
            },
            // Sublayers on both devices need what a split needs.
            Layer::Devices(_) => {
                Policy::TwoSplit { split: Split { start: 0, end: ops - 1 }, chunking: None }
            }
            Layer::Flexgen(_) => Policy::GpuOnly,
        }
    }
}

fn compress_name(stored: Stored) -> &'static str {
    let choice = match (stored.w4, stored.kv4) {
        (false, false) => CompressChoice::None,
        (true, false) => CompressChoice::W4,
        (false, true) => CompressChoice::Kv4,
        (true, true) => CompressChoice::W4kv4,
    };
    choice.name()
}

fn tell(
    described: &Described,
    machine: &Machine,
    config: &ModelConfig,
    found: &Fitting,
    request: &PlanRequest,
) -> anyhow::Result<String> {
    let Fitting { stored, batches, predicted, plan, limits } = found;
    let policy = predicted.decode_layer.policy;
    let candidate = match &predicted.decode_layer.layer {
        Layer::Interval(candidate) => Some(candidate),
        _ => None,
    };
    if let (Some(path), Some(candidate)) = (&request.chart, candidate) {
        chart_file::write(path, &predicted.table, candidate)?;
    }
    let budget = Budget::of(plan);
    let auto = described.compress.is_none() && stored.any();
    if request.json {
        let ops: Vec<_> = predicted
            .table
            .ops
            .iter()
            .enumerate()
            .map(|(index, op)| {
                json!({
                    "name": op.name,
                    "device": device_of(&predicted.decode_layer.layer, index),
                    "cpu_ms": op.cpu_ms, "gpu_ms": op.gpu_ms, "h2d_ms": op.h2d_ms,
                    "h2d_compressed_ms": op.h2d_compressed_ms,
                    "decompress_ms": op.decompress_ms, "kv": op.kv,
                })
            })
            .collect();
        let answer = json!({
            "machine": machine.name, "model": config.name,
            "batches": batches.count, "batch_size": batches.size,
            "policy": policy.name(), "compress": compress_name(*stored),
            "layer_ms": predicted.decode_layer.latency.ms(), "ops": ops,
            "gpu_interval": candidate.map(|candidate| candidate.interval),
            "prefill_ms": predicted.prefill_ms, "decode_step_ms": predicted.step_ms,
            "total_ms": predicted.total_ms, "tokens_per_s": predicted.tokens_per_s,
            "budget_bytes": {
                "weights": budget.weights_bytes, "kv": budget.kv_bytes,
                "activations": budget.activations_bytes, "device": budget.device_bytes,
                "dram_limit": limits.dram_bytes, "vram_limit": limits.vram_bytes,
            },
        });
        return Ok(serde_json::to_string_pretty(&answer)? + "\n");
    }
    let mut text = format!(
        "{} · {} · {} · {} · predicted, not measured\n",
        config.name,
        machine.name,
        batches,
        policy.name()
    );
    if auto {
        let _ = writeln!(
            text,
            "Weights and KV do not fit uncompressed, so both are kept in 4 bits (--compress \
             w4kv4); --compress none refuses with the numbers."
        );
    }
    match candidate {
        Some(candidate) => {
            let searched = search(&predicted.table)?;
            if searched.best.candidate == *candidate {
                text += &layer::text(&predicted.table, &searched);
            } else {
                let _ = writeln!(text, "{}", layer::named(&predicted.table, candidate));
            }
            let steady = steady_layer(&predicted.table, candidate, &Shape::default());
            let _ = write!(text, "\n{}", gantt::draw(&predicted.table, &steady));
        }
        None => {
            let on: Vec<String> = (0..predicted.table.ops.len())
                .map(|op| {
                    let device = device_of(&predicted.decode_layer.layer, op);
                    format!("{} {device}", predicted.table.ops[op].name)
                })
                .collect();
            let _ = writeln!(text, "layer: {}", on.join(", "));
        }
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    let _ = writeln!(
        text,
        "\nprefill {:.1} s, decode step {:.1} ms, {} new tokens each in {:.1} s: {:.2} tokens/s",
        predicted.prefill_ms / 1e3,
        predicted.step_ms,
        described.gen_len,
        predicted.total_ms / 1e3,
        predicted.tokens_per_s
    );
    let _ = writeln!(
        text,
        "host memory {:.1} of {:.1} GiB (weights {:.1}, KV {:.1}, activations {:.1}); device \
         memory {:.1} of {:.1} GiB",
        gib(budget.dram_bytes(limits)),
        gib(limits.dram_bytes),
        gib(budget.weights_bytes),
        gib(budget.kv_bytes),
        gib(budget.activations_bytes),
        gib(budget.device_bytes),
        gib(limits.vram_bytes.unwrap_or(0)),
    );
    Ok(text)
}

fn device_of(layer: &Layer, op: usize) -> &'static str {
    let gpu = match layer {
        Layer::Interval(candidate) => candidate.on_gpu(op),
        Layer::Devices(gpu) => gpu[op],
        Layer::Flexgen(_) => true,
    };
    if gpu { "gpu" } else { "cpu" }
}
