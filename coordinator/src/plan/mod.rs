//! `coordinator plan`: which placement, why, and what it would take; nothing is run.
//!
//! Three sources of costs: this machine as measured, a table of measured operations (`--tables`), which
//! needs no model, and the description of a machine that one need not have (`--machine`).

mod chart_file;
mod described;
mod gantt;
mod here;
pub(crate) mod show;
mod tables;

use std::io::Write;
use std::path::PathBuf;

use model::config::Dtype;
use planner::policies::PolicyName;
use program::map::Chunking;

use crate::cli::high::{ModelChoice, Run};
use crate::cli::values::{Batches, CompressChoice};
use crate::exit::Exit;
use crate::job::error::JobError;
use crate::job::interrupt::Interrupt;

/// What to plan, and how to say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanRequest {
    pub source: Source,
    pub json: bool,
    /// A file for `scripts/plot.py`.
    pub chart: Option<PathBuf>,
}

/// Where costs come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// This machine and a run on it.
    Here(Box<Run>),
    /// A table of measured times.
    Tables(PathBuf),
    /// A machine by description, a model and a workload.
    Machine(Box<Described>),
}

/// A model on a described machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// A file, or the name of one that comes with the program.
    pub machine: String,
    pub model: ModelChoice,
    pub dtype: Dtype,
    /// `None`: lossless where that fits, else both weights and KV in 4 bits.
    pub compress: Option<CompressChoice>,
    pub batches: Batches,
    pub prompt_len: u32,
    pub gen_len: u32,
    pub policy: PolicyName,
    pub chunking: Option<Chunking>,
}

/// Plans and prints.
///
/// # Errors
/// A sentence for the user.
pub fn run(request: &PlanRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let answer = match &request.source {
        Source::Here(run) => here::plan(run, request, interrupt)?,
        Source::Tables(path) => tables::plan(path, request)?,
        Source::Machine(described) => described::plan(described, request)?,
    };
    let told = std::io::stdout().write_all(answer.as_bytes());
    match told {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(JobError::BrokenPipe.into())
        }
        told => Ok(told.map(|()| Exit::Done)?),
    }
}
