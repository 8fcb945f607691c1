//! Launches the engine, with a progress bar while it loads.

use anyhow::Context;
use grammar::Grammars;
use program::plan::Plan;

use super::bar::Bar;
use super::hardware::Hardware;
use super::model::Opened;
use super::nodes;
use super::select;
use super::staging::nvme::Nvme;
use crate::cli::request::{Run, Verbosity};
use crate::engine::RunEngine;
use crate::engine::launch::LaunchOptions;
use crate::engine::trace_file::TraceFile;
use crate::interrupt::Interrupt;

/// Starts the workers and waits until the model is loaded.
///
/// # Errors
/// The reason for which a worker did not get ready, in its own words.
pub(crate) fn start(
    run: &Run,
    opened: &Opened,
    plan: Plan,
    (grammars, nvme): (Option<Grammars>, Option<&Nvme>),
    interrupt: &Interrupt,
) -> anyhow::Result<RunEngine> {
    let hardware = Hardware::resolve(run, plan.map.uses_gpu());
    let options = LaunchOptions {
        grammars,
        staged: nvme.map(Nvme::staged).unwrap_or_default(),
        nodes: nodes::checked(run, &plan)?,
        select_text: select::text(run, opened)?,
        quiet: run.verbosity == Verbosity::Quiet,
        ..hardware.launch(opened.weights.clone())
    };
    let trace = match &run.trace {
        Some(path) => Some(
            TraceFile::create(path, &plan)
                .with_context(|| format!("the trace file {}", path.display()))?,
        ),
        None => None,
    };
    let mut progress = Bar::new("loading", run.verbosity == Verbosity::Quiet);
    let signals = interrupt.clone();
    let mut engine = RunEngine::start(
        plan,
        &options,
        trace,
        Box::new(move || signals.is_requested()),
        &mut |done, total| {
            progress.update(done, total);
            true
        },
    )?;
    progress.end();
    engine.share_prompts(run.shares_prompts);
    Ok(engine)
}
