//! Launches the engine, with a progress bar while it loads.

use std::path::Path;

use anyhow::Context;
use engine::RunEngine;
use engine::launch::LaunchOptions;
use engine::trace_file::TraceFile;
use grammar::GrammarSet;
use program::plan::Plan;

use super::byte_progress_bar::ByteProgressBar;
use super::hardware::Hardware;
use super::kv_select;
use super::numa_nodes;
use super::staging::nvme::Nvme;
use crate::interrupt::Interrupt;
use crate::session::Session;

/// Starts the workers and waits until the model is loaded.
///
/// # Errors
/// The reason for which a worker did not get ready, in its own words.
pub fn start(
    session: &Session<'_>,
    plan: Plan,
    grammars: Option<GrammarSet>,
    nvme: Option<&Nvme>,
    trace: Option<&Path>,
    interrupt: &Interrupt,
) -> anyhow::Result<RunEngine> {
    let hardware = Hardware::resolve(session, plan.map.uses_gpu());
    let options = LaunchOptions {
        grammars,
        staged: nvme.map(Nvme::staged).unwrap_or_default(),
        memory_nodes: numa_nodes::validated_nodes(session, &plan)?,
        select_text: kv_select::calibration_tokens(session)?,
        quiet: session.options.is_quiet(),
        ..hardware.launch_options(session.model.weights.clone())
    };
    let trace = create_trace_file(trace, &plan)?;
    let mut progress = ByteProgressBar::new("loading", session.options.is_quiet());
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
    engine.set_share_prompts(session.options.shares_prompts);
    Ok(engine)
}

/// Creates the file for the trace of a run, if one is requested.
///
/// # Errors
/// A file that could not be created or written.
pub(crate) fn create_trace_file(
    trace: Option<&Path>,
    plan: &Plan,
) -> anyhow::Result<Option<TraceFile>> {
    let create = |path: &Path| {
        TraceFile::create(path, plan).with_context(|| format!("the trace file {}", path.display()))
    };
    trace.map(create).transpose()
}
