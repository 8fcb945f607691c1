//! A machine of the comparison, as it is and with twice as much of something.

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

/// What a machine does at its best.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Best {
    pub(super) batches: Batches,
    pub(super) policy: &'static str,
    /// What is kept in device memory.
    pub(super) resident: Option<String>,
    pub(super) tokens_per_s: f64,
    pub(super) decode_step_ms: f64,
    /// The busiest lane of a decode step, and its share of the step.
    pub(super) bottleneck: Option<(String, f64)>,
    pub(super) note: Option<String>,
}

/// A machine of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// No other row has it.
    pub(super) label: String,
    pub(super) running: Option<Running>,
    /// Or a sentence about why there is none.
    pub(super) best: Result<Best, String>,
    /// The same with twice as much of what it has; `None`: nothing fits then either.
    pub(super) twice: Vec<(Resource, Option<Best>)>,
}

impl Row {
    /// Searches for the best on a machine and on it with twice as much, all at once; `after` is
    /// called after each search.
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

    /// Of a million new tokens; `None` where it is not known.
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
