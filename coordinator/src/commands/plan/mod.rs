//! `coordinator plan`: which placement, why, and what it would take; nothing is run.
//!
//! Three sources of costs: this machine as measured, a table of measured operations (`--tables`),
//! which needs no model, and the description of a machine that one need not have (`--machine`).

mod chart_file;
mod described;
mod here;
mod show;
mod tables;
pub mod templates;

use std::io::Write;

use crate::cli::request::{PlanRequest, Source};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::job::error::JobError;

/// Plans and prints.
///
/// # Errors
/// A sentence for the user.
pub fn run(request: &PlanRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let answer = match &request.source {
        Source::Here(run) => here::plan(run, request, interrupt)?,
        Source::Tables(path) => tables::plan(path, request)?,
        Source::Machine(described) => described::plan(described, request)?,
        Source::Template(template) => templates::text(*template).to_owned(),
    };
    let written = std::io::stdout().write_all(answer.as_bytes());
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(JobError::BrokenPipe.into())
        }
        written => Ok(written.map(|()| Exit::Done)?),
    }
}
