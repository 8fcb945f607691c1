//! `coordinator plan`: shows the chosen placement, the reasons for it and its predicted cost,
//! without running it.
//!
//! Costs come from one of three sources: measurements of this machine; a table of measured
//! operations (`--tables`), which needs no model; and descriptions of machines (`--machine`,
//! `--compare`; with `--serve` for requests that arrive over time).

mod chart_file;
mod compare;
mod described;
mod here;
mod long;
mod serving;
mod show;
mod tables;
pub mod templates;
mod vectors;

use std::io::{Write, stdout};

use crate::cli::request::{PlanRequest, Source};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::job::error::JobError;
use crate::terminal::print;

/// Plans and prints the result.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &PlanRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let answer = match &request.source {
        Source::Here(run) => here::plan(run, request, interrupt)?,
        Source::Tables(path) => tables::plan(path, request)?,
        Source::Machine { machine, described } => described::plan(machine, described, request)?,
        Source::Serving { machine, serving } => {
            serving::plan(machine, serving, request, interrupt)?
        }
        Source::Served { costs, load } => serving::plan_measured(costs, load, request, interrupt)?,
        Source::Compare { machines, described } => {
            compare::plan(machines, described, request, interrupt)?
        }
        Source::Template(template) => templates::text(*template).to_owned(),
    };
    let written = if request.json { stdout().write_all(answer.as_bytes()) } else { print(&answer) };
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(JobError::BrokenPipe.into())
        }
        written => Ok(written.map(|()| Exit::Done)?),
    }
}
