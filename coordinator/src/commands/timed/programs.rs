//! Programs whose instructions only take time, and the source of their times: a table's layers, or
//! a placement on a described machine.

use std::path::Path;

use anyhow::Context;
use planner::layer::table::Table;
use planner::timed::{Timed, TimedPlan, Times, steady, steady_step};
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::plan::Plan;
use program::simulate::Span;
use workers::shared::protocol::Durations;

use super::report::{MachinePart, OriginPart, Pair, TablePart};
use crate::cli::request::{Described, TimedRequest, TimedSource};
use crate::cli::values::CompressChoice;
use crate::report::placement::on_gpu;
use crate::setup::described;
use crate::setup::described::Planning;
use crate::setup::measured_machine::MeasuredMachine;

/// Minimum duration in the workers of a step of a described machine, so that the cost of
/// communication between processes on this machine is negligible.
const STEP_MIN_MS: f64 = 100.0;

/// Programs to run, and the times of their instructions.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) plan: Plan,
    pub(super) times: Times,
    /// Factor by which time passes more slowly in the workers.
    pub(super) slow_motion: u32,
    pub(super) origin: OriginPart,
}

impl Programs {
    /// Returns the duration of each instruction in the workers.
    pub(super) fn durations(&self) -> Durations {
        let slowly = |ns: &u64| ns.saturating_mul(u64::from(self.slow_motion));
        let lanes =
            self.times.lanes().iter().map(|(lane, ns)| (*lane, ns.iter().map(slowly).collect()));
        Durations::Decode(lanes.collect())
    }

    /// Converts spans measured in the workers to times of the emulated machine.
    pub(super) fn at_speed(&self, mut spans: Vec<Span>) -> Vec<Span> {
        for span in &mut spans {
            span.start_ns /= u64::from(self.slow_motion);
            span.end_ns /= u64::from(self.slow_motion);
        }
        spans
    }

    /// Searches the table, or plans for the machine.
    ///
    /// # Errors
    /// A table, model or machine that does not exist or cannot run, or a workload that does not fit
    /// the machine.
    pub(super) fn of(request: &TimedRequest) -> anyhow::Result<Programs> {
        match &request.source {
            TimedSource::Tables { tables, layers } => of_table(tables, *layers, request.gen_len)
                .with_context(|| format!("the table {}", tables.display())),
            TimedSource::Machine { machine, described } => of_machine(machine, described),
        }
    }

    /// Returns the steady layer of a table, or the steady step of a machine, as measured and as
    /// simulated.
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
    let origin = OriginPart::Table(TablePart::new(&table, &found));
    Ok(Programs { plan, times, slow_motion: 1, origin })
}

fn of_machine(machine: &str, workload: &Described) -> anyhow::Result<Programs> {
    let description = described::machine("--machine", machine)?;
    // The times come from the machine's rates; measurements in its description do not apply to this
    // workload.
    let machine = MeasuredMachine::as_described(&description);
    let opened = described::open(workload)?;
    let (chosen, _) = Planning::new(workload, &machine, &opened.config).best()?;
    let TimedPlan { plan, times } = TimedPlan::of(&chosen.plan, &description)
        .with_context(|| format!("{} on {}", opened.config.name, description.name))?;
    let map = &chosen.plan.map;
    let planned_step_ms = chosen.steady.step_ns() / 1e6;
    let slow_motion = (STEP_MIN_MS / planned_step_ms).ceil().max(1.0) as u32;
    let origin = OriginPart::Machine(MachinePart {
        policy: chosen.name.name(),
        compress: compress_name(map),
        batch_size: chosen.plan.shape.batch_size,
        gpu: on_gpu(map, &opened.config).1,
        planned_step_ms,
        machine: description.name,
    });
    Ok(Programs { plan, times, slow_motion, origin })
}

fn compress_name(map: &DeviceMap) -> &'static str {
    let choice = match (map.weight_formats.any_grouped(), map.kv_format) {
        (true, KvFormat::Four) => CompressChoice::W4kv4,
        (true, KvFormat::Plain) => CompressChoice::W4,
        (false, KvFormat::Four) => CompressChoice::Kv4,
        (false, KvFormat::Plain) => CompressChoice::None,
    };
    choice.name()
}
