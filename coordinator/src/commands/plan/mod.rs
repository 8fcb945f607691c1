//! `coordinator plan`: shows the chosen placement, the reasons for it and its predicted cost,
//! without running it.
//!
//! Costs come from one of three sources: measurements of this machine; a table of measured
//! operations (`--tables`), which needs no model; and descriptions of machines (`--machine`,
//! `--compare`; with `--serve` for requests that arrive over time).

mod chart_file;
mod compare;
mod described_machine;
mod drafts;
mod long_prompt;
mod show;
mod tables;
pub mod templates;
mod this_machine;
mod vectors;

use crate::cli::request::{PlanRequest, PlanSource};
use lab::serving::{plan_measured, plan_serving};
use session::exit::Exit;
use session::interrupt::Interrupt;
use session::output::print_result;

/// Plans and prints the result.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &PlanRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let answer = match &request.source {
        PlanSource::ThisMachine(run) => this_machine::plan_this_machine(run, request, interrupt)?,
        PlanSource::Tables(path) => tables::plan_table(path, request)?,
        PlanSource::Machine { machine, workload } => {
            described_machine::plan_described(machine, workload, request)?
        }
        PlanSource::Serving { machine, serving } => {
            plan_serving(machine, serving, request.chart.as_deref(), request.json, interrupt)?
        }
        PlanSource::MeasuredServer { costs, load } => {
            plan_measured(costs, load, request.json, interrupt)?
        }
        PlanSource::Compare { machines, workload } => {
            compare::plan_comparison(machines, workload, request, interrupt)?
        }
        PlanSource::Template(template) => templates::template_text(*template).to_owned(),
    };
    print_result(&answer, request.json)?;
    Ok(Exit::Done)
}
