//! Jobs that run as a server does: their lines ask for log-probabilities of prompts, which need
//! programs with logits of any row, or they store prompts, which needs caches in pages.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use batch::completions::BatchJob;
use batch::kind::JobKind;
use batch::progress::{self, EtaConfig, JobProgress};
use batch::run::Job;
use batch::serving_adapter::ServingAdapter;
use batch::summary::JobSummary;
use batch::workload::JobWorkload;
use engine::RunStats;
use engine_api::serving::{Engine, EngineStatus};
use program::plan::Plan;

use super::run_report::{job_counts, write_report};
use report::build::RunPrediction;
use session::argument_error::ArgumentError;
use session::formats::RunCompression;
use session::interrupt::Interrupt;
use session::request::RunRequest;
use session::serving::{ServingConfig, slots_within_capacity, start};
use session::session::Session;
use session::values::BatchesChoice;

/// Results of a job that ran on an engine that serves.
pub(super) struct ServedJob<S> {
    pub(super) summary: S,
    /// Status of the engine after the last sequence.
    pub(super) status: EngineStatus,
    /// Plan of the run, and its measurements if they are requested.
    pub(super) measured: Option<(Plan, RunStats)>,
}

/// Runs the remaining part of a job. `start_progress` gets the number of slots; `describe_excess`
/// returns the error for sequences that are longer than the given context of the engine.
///
/// # Errors
/// An error whose message is meant for the user.
pub(super) fn serve_job<K: JobKind>(
    session: &Session<'_>,
    config: ServingConfig,
    trace: Option<&Path>,
    job: Job<K>,
    start_progress: impl FnOnce(usize) -> Box<dyn JobProgress>,
    describe_excess: impl FnOnce(u32) -> String,
    interrupt: &Interrupt,
) -> anyhow::Result<ServedJob<K::Summary>> {
    let grammars = job.grammars().into_iter().map(Arc::new).collect();
    let serving = start(session, config, trace, interrupt)?;
    let limits = serving.limits();
    if config.context.is_some_and(|context| context > limits.context) {
        return Err(ArgumentError(describe_excess(limits.context)).into());
    }
    let interrupted = || interrupt.is_requested();
    let mut engine = ServingAdapter::new(&serving, grammars, &interrupted);
    let mut progress = start_progress(limits.slots as usize);
    let summary = job.run(Some(&mut engine), progress.as_mut(), &interrupted)?;
    let (status, plan) = (serving.status(), serving.plan().clone());
    let measured = serving.finish().context("the trace file")?;
    Ok(ServedJob { summary, status, measured: measured.map(|stats| (plan, stats)) })
}

/// Runs the remaining part of a job of completions.
///
/// # Errors
/// An error whose message is meant for the user.
pub(super) fn run_served(
    session: &Session<'_>,
    request: &RunRequest,
    job: BatchJob<'_>,
    demand: JobWorkload,
    compression: RunCompression,
    interrupt: &Interrupt,
) -> anyhow::Result<JobSummary> {
    let mut session = session.clone();
    session.options.compress = compression.choice();
    let (quiet, trace) = (session.options.is_quiet(), request.trace.as_deref());
    let config = serving_config(&session, demand)?;
    let start_progress = |slots| progress::for_stderr(quiet, EtaConfig { slots, prior: None });
    let describe_excess = |context| too_long_message(demand, context);
    let ServedJob { summary, status, measured } =
        serve_job(&session, config, trace, job, start_progress, describe_excess, interrupt)?;
    if let Some((plan, stats)) = measured {
        // The steps depend on when answers end.
        let prediction = RunPrediction::unknown((demand.max_prompt as u32, demand.max_new));
        let (report, counts) = (request.report.as_deref(), job_counts(&summary));
        write_report(&session, report, Some(counts), &plan, &stats, &prediction)?;
    }
    if !quiet && session.options.prompt_cache.is_some() {
        eprintln!("{}", cache_hits_message(&status));
    }
    Ok(summary)
}

/// Returns the message for a sequence that needs more positions than there are caches for.
fn too_long_message(demand: JobWorkload, context: u32) -> String {
    format!(
        "the longest prompt and answer have {} tokens, but the KV cache fits only {context}; use \
         --batches 1x1, more memory or shorter prompts",
        demand.max_context
    )
}

/// Describes the share of the prompts' tokens that was not computed again.
fn cache_hits_message(status: &EngineStatus) -> String {
    let (cached, stored) = (status.cached_tokens, status.prompt_cache.tokens);
    let all = cached + status.prompt_tokens;
    format!(
        "{cached} of {all} prompt tokens were reused instead of computed; {stored} were read from \
         the prompt cache"
    )
}

fn serving_config(session: &Session<'_>, demand: JobWorkload) -> anyhow::Result<ServingConfig> {
    let slots = match session.batches {
        Some(BatchesChoice::Fixed(batches)) => Some(batches.count.saturating_mul(batches.size)),
        Some(BatchesChoice::Auto) | None => None,
    };
    let context = u32::try_from(demand.max_context.max(2)).unwrap_or(u32::MAX);
    let slots = slots_within_capacity(slots, context, demand.logprobs).map_err(|slot_bytes| {
        ArgumentError(format!(
            "log-probabilities of prompts and answers of up to {context} tokens need {slot_bytes} \
             bytes per slot, which exceeds the limit; use smaller --batches, or request \
             log-probabilities of fewer tokens"
        ))
    })?;
    Ok(ServingConfig {
        slots,
        context: Some(context),
        logprobs: demand.logprobs,
        records: true,
        ..ServingConfig::FOR_TEXTS
    })
}
