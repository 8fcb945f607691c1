//! The programs whose instructions only last, and whose times they are: a table's layers, or a
//! placement on a described machine.

use std::path::Path;

use anyhow::Context;
use model::compressed::{Grouped, WeightFormat};
use model::config::ModelConfig;
use model::config_json::check_context;
use planner::budget::{Limits, Request};
use planner::layer::table::Table;
use planner::machine::{Machine, known, names};
use planner::policy::{Formats, Placement, Policy};
use planner::priced::{Chosen, Effort, Question, best_batches, choose};
use planner::timed::{Timed, TimedPlan, Times, steady, steady_step};
use program::formats::{KvFormat, WeightFormats};
use program::plan::Plan;
use program::simulate::Span;

use super::report::{MachinePart, OriginPart, Pair, TablePart};
use crate::cli::request::{Described, TimedRequest, TimedSource};
use crate::cli::values::{Batches, BatchesChoice, CompressChoice};
use crate::report::placement::on_gpu;
use crate::setup::auto_batches::SIZE_MAX;
use crate::setup::model::Opened;
use crate::setup::usage::Usage;

/// What runs.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) plan: Plan,
    pub(super) times: Times,
    pub(super) origin: OriginPart,
}

impl Programs {
    /// Searches the table, or plans for the machine.
    ///
    /// # Errors
    /// A table, model or machine that is not there or cannot run; nothing that fits the machine.
    pub(super) fn of(request: &TimedRequest) -> anyhow::Result<Programs> {
        match &request.source {
            TimedSource::Tables { tables, layers } => of_table(tables, *layers, request.gen_len)
                .with_context(|| format!("the table {}", tables.display())),
            TimedSource::Machine(described) => of_machine(described),
        }
    }

    /// The steady layer of a table, the steady step of a machine.
    pub(super) fn pair(&self, measured: &[Span], simulated: Option<&[Span]>) -> Pair {
        let plan = &self.plan;
        match &self.origin {
            OriginPart::Table(_) => {
                let simulated = simulated.and_then(|spans| steady(plan, spans));
                Pair::of_layers(steady(plan, measured).as_ref(), simulated.as_ref())
            }
            OriginPart::Machine(_) => {
                let simulated = simulated.and_then(|spans| steady_step(plan, spans));
                let measured = steady_step(plan, measured);
                Pair::of_steps(measured.as_ref(), simulated.as_ref(), plan.config.num_layers)
            }
        }
    }
}

fn of_table(path: &Path, layers: usize, gen_len: u32) -> anyhow::Result<Programs> {
    let table = Table::from_json(&std::fs::read_to_string(path)?)?;
    let Timed { plan, times, found } = Timed::of(&table, layers, gen_len)?;
    Ok(Programs { plan, times, origin: OriginPart::Table(TablePart::new(&table, &found)) })
}

fn of_machine(described: &Described) -> anyhow::Result<Programs> {
    let machine = machine(&described.machine)?;
    let opened = Opened::open(&described.model, 0)?;
    let config = &opened.config;
    let context = (described.prompt_len + described.gen_len) as usize;
    check_context(config, context).map_err(|error| Usage(error.to_string()))?;
    let compress = described.compress.unwrap_or(CompressChoice::None);
    let chosen = chosen(described, &machine, config, compress)
        .with_context(|| format!("--machine {}", described.machine))?;
    let TimedPlan { plan, times } = TimedPlan::of(&chosen.plan, &machine)
        .with_context(|| format!("{} on {}", config.name, machine.name))?;
    let origin = OriginPart::Machine(MachinePart {
        policy: chosen.name.name(),
        compress: compress.name(),
        batch_size: chosen.plan.shape.batch_size,
        gpu: on_gpu(&chosen.plan.map, config).1,
        planned_step_ms: chosen.steady.step_ns() / 1e6,
        machine: machine.name,
    });
    Ok(Programs { plan, times, origin })
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
            let known = names().collect::<Vec<_>>().join(", ");
            let text = format!("--machine {name}: no such file, and none of {known}");
            Err(Usage(text).into())
        }
    }
}

/// The best placement on the machine.
fn chosen(
    described: &Described,
    machine: &Machine,
    config: &ModelConfig,
    compress: CompressChoice,
) -> anyhow::Result<Chosen> {
    let mut formats = Formats::plain(config);
    if compress.weights() {
        formats.weights = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
    }
    if compress.kv() {
        formats.kv = KvFormat::Four;
    }
    let limits = Limits {
        dram_bytes: machine.dram_bytes(),
        vram_bytes: Some(machine.vram_bytes()),
        vram_is_dram: false,
        device_scratch: None,
    };
    let request = Request {
        config,
        placement: &Placement::of(Policy::GpuOnly),
        formats: &formats,
        fuse_attention: true,
        dtype: described.dtype,
        max_prompt: described.prompt_len,
        shared_prompt: 0,
        max_context: described.prompt_len + described.gen_len,
        max_new: described.gen_len,
        logprobs: 0,
        prefill_chunk: None,
        limits: &limits,
    };
    let chunkings: Vec<_> = std::iter::once(None).chain(described.chunking.map(Some)).collect();
    let question = Question {
        request: &request,
        batches: 1,
        batch_size: 1,
        policy: described.policy,
        chunkings: &chunkings,
        pricing: machine,
        effort: Effort::Full,
        stage: None,
    };
    let batches = match described.batches {
        BatchesChoice::Given(batches) => batches,
        BatchesChoice::Auto => best_batches(&question, usize::MAX, SIZE_MAX)
            .map_or(Batches { count: 1, size: 1 }, |(count, size)| Batches { count, size }),
    };
    Ok(choose(&Question { batches: batches.count, batch_size: batches.size, ..question })?)
}
