//! Programs whose instructions only take time, and the source of their times: a table's layers, or
//! a placement on a described machine.

use std::path::Path;

use anyhow::Context;
use planner::layer::table::OperationTable;
use planner::machine::DraftedDecode;
use planner::timed::{InstructionTimes, TimedPlan, TimedTablePlan, steady, steady_step};
use program::map::DeviceMap;
use program::plan::Plan;
use program::simulate::Span;
use protocol::messages::TimedDurations;

use super::report::{MachineDetails, SteadyComparison, TableDetails, TimesOrigin};
use crate::request::{TimedRequest, TimedSource};
use report::placement::format_gpu_ops;
use session::machine_plan;
use session::machine_plan::MachinePlanner;
use session::measured_machine::MeasuredMachine;
use session::request::PlanWorkload;
use session::values::CompressChoice;

/// Minimum duration in the workers of a step of a described machine, so that the cost of
/// communication between processes on this machine is negligible.
const MIN_STEP_MS: f64 = 100.0;

/// Programs to run, and the times of their instructions.
#[derive(Debug)]
pub(super) struct TimedPrograms {
    pub(super) plan: Plan,
    pub(super) times: InstructionTimes,
    /// Factor by which time passes more slowly in the workers.
    pub(super) slow_motion: u32,
    pub(super) origin: TimesOrigin,
}

impl TimedPrograms {
    /// Returns the duration of each instruction in the workers.
    pub(super) fn durations(&self) -> TimedDurations {
        let scale = |ns: &u64| ns.saturating_mul(u64::from(self.slow_motion));
        let lanes =
            self.times.lanes().iter().map(|(lane, ns)| (*lane, ns.iter().map(scale).collect()));
        TimedDurations::Decode(lanes.collect())
    }

    /// Converts spans measured in the workers to times of the emulated machine.
    pub(super) fn to_machine_time(&self, mut spans: Vec<Span>) -> Vec<Span> {
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
    pub(super) fn load(request: &TimedRequest) -> anyhow::Result<TimedPrograms> {
        match &request.source {
            TimedSource::Tables { tables, layers } => from_table(tables, *layers, request.gen_len)
                .with_context(|| format!("the table {}", tables.display())),
            TimedSource::Machine { machine, workload } => from_machine(machine, workload),
        }
    }

    /// Returns the steady layer of a table, or the steady step of a machine, as measured and as
    /// simulated.
    pub(super) fn compare(
        &self,
        measured: &[Span],
        simulated: Option<&[Span]>,
    ) -> SteadyComparison {
        let plan = &self.plan;
        match &self.origin {
            TimesOrigin::Table(_) => {
                let simulated = simulated.and_then(|spans| steady(plan, spans));
                SteadyComparison::from_layers(steady(plan, measured).as_ref(), simulated.as_ref())
            }
            TimesOrigin::Machine(_) => {
                let simulated = simulated.and_then(|spans| steady_step(plan, spans));
                let measured = steady_step(plan, measured);
                SteadyComparison::from_steps(
                    measured.as_ref(),
                    simulated.as_ref(),
                    plan.config.num_layers,
                )
            }
        }
    }
}

fn from_table(path: &Path, layers: usize, gen_len: u32) -> anyhow::Result<TimedPrograms> {
    let table = OperationTable::from_json(&std::fs::read_to_string(path)?)?;
    let TimedTablePlan { plan, times, search_result } =
        TimedTablePlan::from_table(&table, layers, gen_len)?;
    let origin = TimesOrigin::Table(TableDetails::new(&table, &search_result));
    Ok(TimedPrograms { plan, times, slow_motion: 1, origin })
}

fn from_machine(machine: &str, workload: &PlanWorkload) -> anyhow::Result<TimedPrograms> {
    let description = machine_plan::load_machine("--machine", machine)?;
    // The times come from the machine's rates; measurements in its description do not apply to this
    // workload.
    let machine = MeasuredMachine::without_measurements(&description);
    let model = machine_plan::open(workload)?;
    let planner = MachinePlanner::new(workload, &machine, &model.config);
    let (mut chosen, _) = planner.choose_placement()?;
    let mut drafts = 0;
    if let Some(speculation) = &workload.speculation {
        let drafted = planner.choose_drafts(&chosen, speculation)?;
        drafts = drafted.step.drafts;
        chosen = drafted.search_result;
    }
    let pricing = DraftedDecode { machine: &description, drafts };
    let TimedPlan { plan, times } = TimedPlan::from_plan(&chosen.plan, &pricing)
        .with_context(|| format!("{} on {}", model.config.name, description.name))?;
    let map = &chosen.plan.map;
    let planned_step_ms = chosen.steady.step_ns() / 1e6;
    let slow_motion = (MIN_STEP_MS / planned_step_ms).ceil().max(1.0) as u32;
    let origin = TimesOrigin::Machine(MachineDetails {
        policy: chosen.name.name(),
        compress: compress_name(map),
        batch_size: chosen.plan.shape.batch_size,
        gpu: format_gpu_ops(map, &model.config).1,
        drafts,
        planned_step_ms,
        machine: description.name,
    });
    Ok(TimedPrograms { plan, times, slow_motion, origin })
}

fn compress_name(map: &DeviceMap) -> &'static str {
    CompressChoice::of_formats(map.weight_formats.any_grouped(), map.kv_format).name()
}
