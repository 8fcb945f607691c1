//! Launches the engine, with a progress bar while it loads.

use std::path::PathBuf;

use anyhow::Context;
use engine::RunEngine;
use engine::launch::LaunchOptions;
use engine::trace_file::TraceFile;
use grammar::GrammarSet;
use program::plan::Plan;

use super::byte_progress_bar::ByteProgressBar;
use super::hardware::Hardware;
use super::kv_select;
use super::model::ModelHandle;
use super::numa_nodes;
use super::staging::nvme::Nvme;
use crate::interrupt::Interrupt;
use crate::request::{RunRequest, Verbosity};

/// Starts the workers and waits until the model is loaded.
///
/// # Errors
/// The reason for which a worker did not get ready, in its own words.
pub fn start(
    run: &RunRequest,
    model: &ModelHandle,
    plan: Plan,
    grammars: Option<GrammarSet>,
    nvme: Option<&Nvme>,
    interrupt: &Interrupt,
) -> anyhow::Result<RunEngine> {
    let hardware = Hardware::resolve(run, plan.map.uses_gpu());
    let options = LaunchOptions {
        grammars,
        staged: nvme.map(Nvme::staged).unwrap_or_default(),
        memory_nodes: numa_nodes::validated_nodes(run, &plan)?,
        select_text: kv_select::calibration_tokens(run, model)?,
        quiet: run.verbosity == Verbosity::Quiet,
        ..hardware.launch_options(model.weights.clone())
    };
    let trace = create_trace_file(run, &plan)?;
    let mut progress = ByteProgressBar::new("loading", run.verbosity == Verbosity::Quiet);
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
    progress.finish();
    engine.set_share_prompts(run.shares_prompts);
    Ok(engine)
}

/// Creates the file for the trace of a run, if one is requested.
///
/// # Errors
/// A file that could not be created or written.
pub(crate) fn create_trace_file(
    run: &RunRequest,
    plan: &Plan,
) -> anyhow::Result<Option<TraceFile>> {
    let create = |path: &PathBuf| {
        TraceFile::create(path, plan).with_context(|| format!("the trace file {}", path.display()))
    };
    run.trace.as_ref().map(create).transpose()
}
