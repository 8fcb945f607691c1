//! Jobs of embeddings, which run as a server does: its programs pool hidden states.

use batch::embeddings::job::EmbeddingJob;
use batch::embeddings::prepare::PreparedEmbeddings;
use batch::progress::SilentProgress;
use batch::progress_counter::{ProgressCounter, SequenceCounter};
use batch::summary::JobSummary;
use openai::fingerprint::system_fingerprint;
use report::build::RunPrediction;

use super::run_report::{job_counts, write_report};
use super::serving_job::{ServedJob, serve_job};
use session::formats::{describe_formats, resolve_formats};
use session::interrupt::Interrupt;
use session::request::RunRequest;
use session::serving::{ServingConfig, serving_compression};
use session::session::Session;
use session::values::BatchesChoice;

/// Computes the embeddings that the output lacks, with these kernels.
///
/// # Errors
/// An error whose message is meant for the user.
pub(super) fn run_embeddings(
    session: &Session<'_>,
    request: &RunRequest,
    read: PreparedEmbeddings,
    kernels: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<JobSummary> {
    let config = serving_config(session, read.max_input_len().unwrap_or(1));
    let job = read.resume(fingerprint(session, config, kernels)?)?;
    if !session.options.is_quiet() {
        job.notes()
            .iter()
            .chain(&job.error_summary())
            .chain(&job.resume_summary())
            .for_each(|line| eprintln!("{line}"));
    }
    if !job.needs_engine() {
        return Ok(job.run(None, &mut SilentProgress, &|| interrupt.is_requested())?);
    }
    compute(session, request, job, config, interrupt)
}

fn compute(
    session: &Session<'_>,
    request: &RunRequest,
    job: EmbeddingJob,
    config: ServingConfig,
    interrupt: &Interrupt,
) -> anyhow::Result<JobSummary> {
    let (quiet, trace) = (session.options.is_quiet(), request.trace.as_deref());
    let longest = config.context.unwrap_or(0);
    let start_progress = |_| {
        let counter = ProgressCounter::for_stderr(quiet, "texts embedded");
        Box::new(SequenceCounter::new(counter)) as Box<_>
    };
    let describe_excess = |context| {
        format!(
            "the longest input needs {longest} positions, but the KV cache fits only {context}; \
             use --batches 1x1, more memory or shorter inputs"
        )
    };
    let ServedJob { summary, measured, .. } =
        serve_job(session, config, trace, job, start_progress, describe_excess, interrupt)?;
    if let Some((plan, stats)) = measured {
        let prediction = RunPrediction::unknown((longest, 0));
        let (report, counts) = (request.report.as_deref(), job_counts(&summary));
        write_report(session, report, Some(counts), &plan, &stats, &prediction)?;
    }
    Ok(summary)
}

/// Returns the configuration of an engine for inputs of at most `longest` tokens, each of which a
/// token follows.
fn serving_config(session: &Session<'_>, longest: usize) -> ServingConfig {
    let slots = match session.batches {
        Some(BatchesChoice::Fixed(batches)) => Some(batches.count.saturating_mul(batches.size)),
        Some(BatchesChoice::Auto) | None => None,
    };
    let context = u32::try_from(longest.saturating_add(1).max(2)).unwrap_or(u32::MAX);
    ServingConfig { slots, context: Some(context), records: true, ..ServingConfig::FOR_TEXTS }
}

/// Returns the fingerprint of the system that computes the embeddings.
fn fingerprint(
    session: &Session<'_>,
    config: ServingConfig,
    kernels: &str,
) -> anyhow::Result<String> {
    let Session { model, options, .. } = session;
    let compression = serving_compression(session, config)?;
    let formats = describe_formats(&resolve_formats(session, compression));
    let (weights, config) = (model.weights_identity()?, &model.config);
    Ok(system_fingerprint(config, &weights, options.dtype, &formats, options.seed, kernels))
}
