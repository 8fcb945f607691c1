//! A machine of the comparison, as described and with twice as much of one resource.

use std::panic::resume_unwind;
use std::thread;

use model::config::ModelConfig;
use planner::machine::{Machine, Resource, Running};

use crate::cli::request::Described;
use crate::cli::values::Batches;
use crate::report::placement::resident;
use crate::report::step::Step;
use crate::setup::described::Planning;
use crate::setup::measured_machine::MeasuredMachine;

/// Best placement on a machine, and its predicted performance.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Best {
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
pub(super) struct Row {
    /// Name of the machine, unique among the rows.
    pub(super) label: String,
    pub(super) running: Option<Running>,
    /// Best placement, or a sentence that explains why there is none.
    pub(super) best: Result<Best, String>,
    /// Best placement with twice as much of each resource that the machine has; `None` if still
    /// nothing fits.
    pub(super) twice: Vec<(Resource, Option<Best>)>,
}

impl Row {
    /// Searches for the best placement on a machine, and with twice as much of each of its
    /// resources, all concurrently. Calls `after` after each search.
    pub(super) fn of(
        label: String,
        machine: &Machine,
        described: &Described,
        config: &ModelConfig,
        after: impl Fn() + Sync,
    ) -> Row {
        let best = &|machine: &Machine| {
            let best = Best::of(described, machine, config);
            after();
            best
        };
        thread::scope(|scope| {
            let has = Resource::ALL.into_iter().filter(|resource| machine.has(*resource));
            let twice = has.map(|resource| {
                (resource, scope.spawn(move || best(&machine.with_twice(resource)).ok()))
            });
            let twice: Vec<_> = twice.collect();
            let best = best(machine);
            let twice = twice.into_iter().map(|(resource, search)| {
                (resource, search.join().unwrap_or_else(|panic| resume_unwind(panic)))
            });
            Row { label, running: machine.running, best, twice: twice.collect() }
        })
    }

    /// Returns a cost of a million new tokens; `None` if it is unknown.
    pub(super) fn per_million(&self, of: fn(&Running, f64) -> f64) -> Option<f64> {
        let best = self.best.as_ref().ok()?;
        Some(of(self.running.as_ref()?, best.tokens_per_s))
    }
}

impl Best {
    fn of(described: &Described, machine: &Machine, config: &ModelConfig) -> Result<Best, String> {
        let machine = MeasuredMachine::as_described(machine);
        let planning = Planning::new(described, &machine, config);
        let (chosen, note) = planning.best().map_err(|error| format!("{error:#}"))?;
        let shape = &chosen.plan.shape;
        let busiest = Step::of(&chosen.plan, &chosen.steady).busiest();
        Ok(Best {
            batches: Batches { count: shape.batches, size: shape.batch_size },
            policy: chosen.name.name(),
            resident: resident(&chosen.plan.map),
            tokens_per_s: chosen.tokens_per_s(),
            decode_step_ms: chosen.step_ns() / 1e6,
            bottleneck: busiest.map(|(lane, share)| (lane.to_owned(), share)),
            note,
        })
    }
}
