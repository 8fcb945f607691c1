//! `--machine FILE.toml`: a model and a workload on a machine that need not be at hand.

use super::show::Answer;
use crate::cli::request::{Described, PlanRequest};
use crate::setup::described;
use crate::setup::described::Planning;
use crate::setup::measured_machine::MeasuredMachine;

/// The answer, as text or JSON.
///
/// # Errors
/// A model or machine that is not there, or nothing that fits.
pub(super) fn plan(
    machine: &str,
    workload: &Described,
    request: &PlanRequest,
) -> anyhow::Result<String> {
    let description = described::machine("--machine", machine)?;
    let machine = MeasuredMachine::of(description, machine, workload.policy)?;
    let opened = described::open(workload)?;
    let planning = Planning::new(workload, &machine, &opened.config);
    let (chosen, note) = planning.best()?;
    Answer {
        chosen: &chosen,
        machine: &machine.description.name,
        limits: planning.limits,
        notes: note.as_slice(),
        threads: None,
    }
    .render(request)
}
