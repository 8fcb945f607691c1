//! A machine of the comparison, as described and with twice as much of one resource.

use std::panic::resume_unwind;
use std::thread;

use model::config::ModelConfig;
use planner::machine::{Machine, OperatingCosts, Resource};

use report::placement::format_device_contents;
use report::step::Step;
use session::machine_plan::MachinePlanner;
use session::measured_machine::MeasuredMachine;
use session::request::PlanWorkload;
use session::values::Batches;

/// Best placement on a machine, and its predicted performance.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BestPlan {
    pub(super) batches: Batches,
    pub(super) policy: &'static str,
    /// Weights and KV that stay in device memory, in words.
    pub(super) resident: Option<String>,
    pub(super) tokens_per_s: f64,
    pub(super) decode_step_ms: f64,
    /// Busiest lane of a decode step, and the share of the step in which it works.
    pub(super) bottleneck: Option<(String, f64)>,
    pub(super) note: Option<String>,
}

/// One machine of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MachineRow {
    /// Name of the machine, unique among the rows.
    pub(super) label: String,
    pub(super) running: Option<OperatingCosts>,
    /// Best placement, or a sentence that explains why there is none.
    pub(super) best: Result<BestPlan, String>,
    /// Best placement with twice as much of each resource that the machine has; `None` if still
    /// nothing fits.
    pub(super) doubled: Vec<(Resource, Option<BestPlan>)>,
}

impl MachineRow {
    /// Searches for the best placement on a machine, and with twice as much of each of its
    /// resources, all concurrently. Calls `after` after each search.
    pub(super) fn search(
        label: String,
        machine: &Machine,
        workload: &PlanWorkload,
        config: &ModelConfig,
        after: impl Fn() + Sync,
    ) -> MachineRow {
        let best = &|machine: &Machine| {
            let best = BestPlan::search(workload, machine, config);
            after();
            best
        };
        thread::scope(|scope| {
            let resources =
                Resource::ALL.into_iter().filter(|resource| machine.has_resource(*resource));
            let searches = resources.map(|resource| {
                (resource, scope.spawn(move || best(&machine.with_doubled(resource)).ok()))
            });
            let searches: Vec<_> = searches.collect();
            let best = best(machine);
            let doubled = searches.into_iter().map(|(resource, search)| {
                (resource, search.join().unwrap_or_else(|panic| resume_unwind(panic)))
            });
            MachineRow { label, running: machine.running, best, doubled: doubled.collect() }
        })
    }

    /// Returns a cost of a million new tokens; `None` if it is unknown.
    pub(super) fn per_million(&self, cost: fn(&OperatingCosts, f64) -> f64) -> Option<f64> {
        let best = self.best.as_ref().ok()?;
        Some(cost(self.running.as_ref()?, best.tokens_per_s))
    }
}

impl BestPlan {
    fn search(
        workload: &PlanWorkload,
        machine: &Machine,
        config: &ModelConfig,
    ) -> Result<BestPlan, String> {
        let machine = MeasuredMachine::without_measurements(machine);
        let planner = MachinePlanner::new(workload, &machine, config);
        let (chosen, note) = planner.choose_placement().map_err(|error| format!("{error:#}"))?;
        let shape = &chosen.plan.shape;
        let busiest = Step::from_steady(&chosen.plan, &chosen.steady).busiest();
        Ok(BestPlan {
            batches: Batches { count: shape.batches, size: shape.batch_size },
            policy: chosen.name.name(),
            resident: format_device_contents(&chosen.plan.map),
            tokens_per_s: chosen.tokens_per_s(),
            decode_step_ms: chosen.step_ns() / 1e6,
            bottleneck: busiest.map(|(lane, share)| (lane.to_owned(), share)),
            note,
        })
    }
}
