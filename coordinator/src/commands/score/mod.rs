//! `coordinator score`: scores texts.

mod table;

use anyhow::Context;

use super::result_files::check_result_files;
use super::run::{kernel_variant, stop_at_stdin_eof};
use super::run_report::write_report;
use super::serving_job::{ServedJob, serve_job};
use crate::cli::request::ScoreRequest;
use batch::outcome::JobOutcome;
use batch::progress::SilentProgress;
use batch::progress_counter::{ProgressCounter, SequenceCounter};
use batch::score::line::LineOptions;
use batch::score::prepare::{PreparedScoreJob, ScoreError, ScoreJobOptions};
use batch::score::scores::ScoreJob;
use batch::score::summary::ScoreSummary;
use batch::score::tokens::PrefixToken;
use batch::score::windows::WindowSizes;
use engine_api::codec::TextCodec;
use openai::fingerprint::system_fingerprint;
use openai::prompt::ModelLimits;
use report::build::RunPrediction;
use report::file::RequestCounts;
use session::argument_error::ArgumentError;
use session::exit::Exit;
use session::formats::{describe_formats, resolve_formats};
use session::interrupt::Interrupt;
use session::model::ModelHandle;
use session::serving::{ServingConfig, serving_compression, slots_within_capacity};
use session::session::Session;

/// Default maximum number of tokens of a text's window.
const DEFAULT_WINDOW: usize = 2048;

/// Scores the input of the command line.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &ScoreRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let quiet = request.options.is_quiet();
    let job_files = Some((&request.input, &request.output));
    check_result_files(job_files, request.report.as_deref(), request.trace.as_deref())?;
    stop_at_stdin_eof(&request.options, interrupt)?;
    let interrupted = || interrupt.is_requested();
    let model = ModelHandle::of_session(&request.options)?;
    let session = Session::new(&model, &request.options);
    let config = &model.config;
    if usize::from(request.details.top) > config.vocab_size {
        let sentence = format!(
            "--top {}: the vocabulary has only {} tokens",
            request.details.top, config.vocab_size
        );
        return Err(ArgumentError(sentence).into());
    }
    let options = ScoreJobOptions {
        input: request.input.clone(),
        output: request.output.clone(),
        mode: request.mode,
        windows: text_windows(request, config.max_positions)?,
        details: request.details,
    };
    let codec = model.codec()?;
    let line_options = LineOptions {
        limits: ModelLimits {
            context: config.max_positions,
            vocab_size: config.vocab_size,
            unsupported_tokenizer: model.unsupported_tokenizer(),
        },
        prefix: PrefixToken(config.bos_token_id.or_else(|| config.eos_token_ids.first().copied())),
        codec: codec.map(|codec| codec as &dyn TextCodec),
    };
    let mut reading = ProgressCounter::for_stderr(quiet, "lines read");
    let read = PreparedScoreJob::prepare(&options, &line_options, &mut reading, &interrupted);
    let read = read.map_err(|error| match error {
        ScoreError::Job(error) => anyhow::Error::from(error),
        other => other.into(),
    })?;
    if let Some(codec) = codec {
        codec.shrink_to_one();
    }
    let serving_config = serving_config(request, read.max_sequence_len().unwrap_or(2))?;
    let job = read.resume(fingerprint(&session, serving_config)?)?;
    if !quiet {
        job.error_summary()
            .iter()
            .chain(&job.resume_summary())
            .for_each(|line| eprintln!("{line}"));
    }
    let summary = if job.needs_engine() {
        score(request, &session, job, serving_config, interrupt)?
    } else {
        job.run(None, &mut SilentProgress, &interrupted)?
    };
    finish(request, &summary, quiet)
}

/// Scores what the output lacks.
fn score(
    request: &ScoreRequest,
    session: &Session<'_>,
    job: ScoreJob,
    config: ServingConfig,
    interrupt: &Interrupt,
) -> anyhow::Result<ScoreSummary> {
    let quiet = session.options.is_quiet();
    let longest = config.context.unwrap_or(0);
    let start_progress = |_| {
        let counter = ProgressCounter::for_stderr(quiet, "continuations scored");
        Box::new(SequenceCounter::new(counter)) as Box<_>
    };
    let trace = request.trace.as_deref();
    let describe_excess = |context| {
        format!(
            "the longest prompt and continuation have {longest} tokens, but the KV cache fits \
             only {context}; use --slots 1, more memory or shorter prompts"
        )
    };
    let ServedJob { summary, measured, .. } =
        serve_job(session, config, trace, job, start_progress, describe_excess, interrupt)?;
    if let Some((plan, stats)) = measured {
        let counts = RequestCounts {
            answered: summary.items - summary.failed - summary.not_run,
            failed: summary.failed,
            cut: 0,
            not_run: summary.not_run,
        };
        let prediction = RunPrediction::unknown((longest, 0));
        let report = request.report.as_deref();
        write_report(session, report, Some(counts), &plan, &stats, &prediction)?;
    }
    Ok(summary)
}

/// Returns the windows into which a text is cut.
fn text_windows(request: &ScoreRequest, positions: usize) -> anyhow::Result<WindowSizes> {
    let context =
        request.context.map_or_else(|| DEFAULT_WINDOW.min(positions), |context| context as usize);
    if context > positions {
        let sentence = format!("--context {context}: the model has {positions} positions");
        return Err(ArgumentError(sentence).into());
    }
    let stride = request.stride.map_or_else(|| context.div_ceil(2), |stride| stride as usize);
    if stride > context {
        let sentence = format!(
            "--stride {stride} exceeds the windows of {context} tokens, so tokens between them \
             would be skipped"
        );
        return Err(ArgumentError(sentence).into());
    }
    Ok(WindowSizes { context, stride })
}

/// Returns the configuration of an engine for sequences of at most `longest` tokens.
fn serving_config(request: &ScoreRequest, longest: usize) -> anyhow::Result<ServingConfig> {
    let context = u32::try_from(longest.max(2)).unwrap_or(u32::MAX);
    let logprobs = request.details.logprobs();
    let slots = slots_within_capacity(request.slots, context, logprobs).map_err(|slot_bytes| {
        ArgumentError(format!(
            "--top {} for sequences of {context} tokens needs {slot_bytes} bytes per slot, which \
             exceeds the limit; use a smaller --top, fewer --slots or shorter prompts",
            request.details.top
        ))
    })?;
    let records = request.report.is_some() || request.trace.is_some();
    let config = ServingConfig {
        slots,
        context: Some(context),
        logprobs,
        records,
        ..ServingConfig::FOR_TEXTS
    };
    Ok(config)
}

/// Returns the fingerprint of the system that scores.
fn fingerprint(session: &Session<'_>, serving_config: ServingConfig) -> anyhow::Result<String> {
    let Session { model, options, .. } = session;
    let compression = serving_compression(session, serving_config)?;
    let formats = describe_formats(&resolve_formats(session, compression));
    let (weights, kernels) = (model.weights_identity()?, kernel_variant(options.device)?);
    let config = &model.config;
    Ok(system_fingerprint(config, &weights, options.dtype, &formats, options.seed, &kernels))
}

/// Prints and writes the summary, and returns the exit code.
fn finish(request: &ScoreRequest, summary: &ScoreSummary, quiet: bool) -> anyhow::Result<Exit> {
    if !quiet || summary.outcome() != JobOutcome::Complete {
        eprintln!("{}", table::render(summary));
    }
    if let Some(path) = &request.summary {
        let text = serde_json::to_string_pretty(summary)? + "\n";
        std::fs::write(path, text).with_context(|| format!("the summary {}", path.display()))?;
    }
    Ok(summary.outcome().into())
}
