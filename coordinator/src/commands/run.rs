//! `coordinator` without a subcommand: one run from arguments to exit code. It finds the model,
//! reads the requests, plans, validates the plan, launches the workers, runs, and reports.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use batch::completions::BatchJob;
use batch::outcome::JobOutcome;
use batch::prepare::{JobOptions, ModelInfo, PreparedInput};
use batch::progress;
use batch::progress_counter::ProgressCounter;
use batch::summary::JobSummary;
use batch::workload::JobWorkload;
use engine::RunEngine;
use engine_api::batch::EngineError;
use engine_api::codec::TextCodec;
use kernels::Variant;
use model::config_json::check_context;
use openai::body::defaults::Defaults;
use openai::fingerprint::system_fingerprint;
use openai::prompt;

use super::embedding_job::run_embeddings;
use super::result_files::check_result_files;
use super::run_report::{job_counts, write_report};
use super::serving_job::run_served;
use lab::benchmark::Benchmark;
use report::build::RunPrediction;
use session::argument_error::ArgumentError;
use session::compression::choose_compression;
use session::cuda_device::is_cuda;
use session::embedding_model::embedding_model;
use session::exit::Exit;
use session::fit_suggestions::FitSuggestions;
use session::formats::{RunCompression, candidate_compressions, describe_formats, resolve_formats};
use session::interrupt::Interrupt;
use session::machine_plan::MORE_POSITIONS;
use session::model::ModelHandle;
use session::placement::{MeasurePolicy, PlacementDecision, decide_and_print};
use session::plan_request::{DEFAULT_MAX_BATCH, grammar_bytes, shrink_batches};
use session::prediction::{
    factors, group_sequences, predict, print_prediction, progress_expectation,
};
use session::request::{BatchJobRequest, RunRequest, RunTask, SessionOptions};
use session::run_history;
use session::session::Session;
use session::start::start;
use session::values::{BatchesChoice, DeviceChoice};

/// Runs a job or a benchmark.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &RunRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let RunRequest { options, batches, task, report, trace } = request;
    let job_files = match task {
        RunTask::Requests(requests) => Some((&requests.input, &requests.output)),
        RunTask::Benchmark { .. } => None,
    };
    check_result_files(job_files, report.as_deref(), trace.as_deref())?;
    stop_at_stdin_eof(options, interrupt)?;
    let model = ModelHandle::of_session(options)?;
    let session = Session { batches: *batches, ..Session::new(&model, options) };
    match task {
        RunTask::Benchmark { prompt_len, gen_len } => {
            if let (Some(note), false) = (unread_stdin_note(), options.is_quiet()) {
                eprintln!("{note}");
            }
            run_benchmark(&session, request, *prompt_len, *gen_len, interrupt)
        }
        RunTask::Requests(requests) => run_requests(&session, request, requests, interrupt),
    }
}

/// Requests the end of the run at the end of stdin, if the command line asks for it.
///
/// # Errors
/// The system cannot create a thread.
pub(super) fn stop_at_stdin_eof(
    options: &SessionOptions,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    if options.stop_at_eof {
        interrupt.request_at_eof(std::io::stdin()).context("the thread that reads stdin")?;
    }
    Ok(())
}

/// Returns a note if stdin is a file or a pipe, which a benchmark does not read.
fn unread_stdin_note() -> Option<&'static str> {
    let kind = Path::new("/dev/stdin").metadata().ok()?.file_type();
    (kind.is_file() || kind.is_fifo())
        .then_some("stdin is not read without `--input -`; running a benchmark with random prompts")
}

/// Returns the command line's defaults for requests.
fn request_defaults(requests: &BatchJobRequest) -> anyhow::Result<Defaults> {
    let read = |path: &PathBuf| -> anyhow::Result<serde_json::Value> {
        let named = || format!("--json-schema {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        Ok(serde_json::from_str(&text)
            .map_err(|error| ArgumentError(format!("{}: {error}", named())))?)
    };
    let json_schema = requests.json_schema.as_ref().map(read).transpose()?;
    Ok(Defaults { json_schema, ..requests.defaults.clone() })
}

/// Returns the name of the kernels that compute the answers, as part of a `system_fingerprint`.
pub(super) fn kernel_variant(device: DeviceChoice) -> anyhow::Result<String> {
    let variant = Variant::from_env()?.name();
    Ok(if is_cuda(device) { format!("{variant}_cuda") } else { variant.to_owned() })
}

/// Returns the options of a job.
fn job_options(seed: u64, requests: &BatchJobRequest) -> anyhow::Result<JobOptions> {
    Ok(JobOptions {
        input: requests.input.clone(),
        output: requests.output.clone(),
        mode: requests.mode,
        chat: requests.chat,
        chat_options: requests.chats.clone(),
        max_tokens: requests.max_tokens,
        seed,
        defaults: request_defaults(requests)?,
        ignore_unknown_fields: requests.ignore_unknown_fields,
        bounds: None,
    })
}

/// Chooses the formats in which a job computes, and returns them with the fingerprint of its
/// answers.
fn resolve_compression(
    session: &Session<'_>,
    demand: Option<JobWorkload>,
    recorded: Option<&str>,
) -> anyhow::Result<(RunCompression, String)> {
    let Session { model, options, .. } = session;
    let (kernels, weights) = (kernel_variant(options.device)?, model.weights_identity()?);
    let fingerprint = |compression: RunCompression| {
        let formats = describe_formats(&resolve_formats(session, compression));
        let config = &model.config;
        system_fingerprint(config, &weights, options.dtype, &formats, options.seed, &kernels)
    };
    // `--compress auto` was resolved when the output was created, regardless of the memory that is
    // free now.
    let matches_recorded = |compression: &RunCompression| {
        recorded.is_some_and(|known| fingerprint(*compression) == known)
    };
    let compression = candidate_compressions(session).into_iter().find(matches_recorded);
    let compression = compression.unwrap_or_else(|| choose_compression(session, demand));
    Ok((compression, fingerprint(compression)))
}

/// Prints a job's notes and errors, and a line about a resumed output, before it runs.
fn print_job(job: &BatchJob<'_>) {
    job.notes().iter().for_each(|note| eprintln!("{note}"));
    job.error_summary().iter().chain(&job.resume_summary()).for_each(|line| eprintln!("{line}"));
}

/// Returns true if a job runs on the scheduler of the server.
fn needs_scheduler(options: &SessionOptions) -> bool {
    options.prompt_cache.is_some() || options.max_drafts > 0
}

/// Reads the input of a job and locks its output.
fn prepare_input<'m>(
    session: &Session<'m>,
    requests: &BatchJobRequest,
    options: &'m JobOptions,
    interrupted: &dyn Fn() -> bool,
) -> anyhow::Result<PreparedInput<'m>> {
    let model = session.model;
    let codec = model.codec()?;
    let facts = ModelInfo {
        name: model.config.name.clone(),
        aliases: vec![session.options.model.name.clone()],
        limits: prompt::ModelLimits {
            context: model.config.max_positions,
            vocab_size: model.config.vocab_size,
            unsupported_tokenizer: model.unsupported_tokenizer(),
        },
        codec: codec.map(|codec| codec as &dyn TextCodec),
    };
    let embeddings = embedding_model(model, requests.pooling);
    let mut reading = ProgressCounter::for_stderr(session.options.is_quiet(), "lines read");
    let read = PreparedInput::prepare(options, facts, &embeddings, &mut reading, interrupted)?;
    if let Some(codec) = codec {
        codec.shrink_to_one();
    }
    Ok(read)
}

fn run_requests(
    session: &Session<'_>,
    request: &RunRequest,
    requests: &BatchJobRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let (model, quiet) = (session.model, session.options.is_quiet());
    let options = job_options(session.options.seed, requests)?;
    let interrupted = || interrupt.is_requested();
    let read = prepare_input(session, requests, &options, &interrupted)?;
    let read = match read {
        PreparedInput::Completions(read) => read,
        PreparedInput::Embeddings(read) => {
            let kernels = kernel_variant(session.options.device)?;
            let summary = run_embeddings(session, request, read, &kernels, interrupt)?;
            return Ok(print_summary(&summary, quiet));
        }
    };
    let file_demand = read.workload();
    let (compression, fingerprint) =
        resolve_compression(session, file_demand, read.recorded_fingerprint())?;
    let job = read.resume(fingerprint)?;
    if !quiet {
        print_job(&job);
    }
    let Some(demand) = job.workload() else {
        let summary = job.run(None, &mut progress::SilentProgress, &interrupted)?;
        return Ok(print_summary(&summary, quiet));
    };
    if demand.evaluates_prompts || needs_scheduler(&session.options) {
        let summary = run_served(session, request, job, demand, compression, interrupt)?;
        return Ok(print_summary(&summary, quiet));
    }
    // Based on the whole file, so that a resumed run has the same shape and needs no other profile.
    let sequences = file_demand.map_or(0, |file_demand| file_demand.sequences);
    let session = &with_smaller_batches(session, sequences);
    // A model that does not support grammars is refused before anything is measured.
    let grammars = model.grammars(job.grammars())?;
    let grammars = grammars.map(|grammars| grammars.with_memory_bytes(grammar_bytes(session)));
    let decision =
        decide_and_print(session, demand, compression, MeasurePolicy::IfNeeded, interrupt)?;
    let session = &decision.with_tuned_threads(session);
    let prediction = predict(&decision, demand, &job);
    print_prediction(session, &prediction);
    let expected = progress_expectation(&decision);
    let suggestions = FitSuggestions { session, demand, compression };
    let trace = request.trace.as_deref();
    let mut engine =
        start(session, decision.plan, grammars, decision.nvme.as_ref(), trace, interrupt)
            .map_err(|error| suggestions.add_suggestion(error))?;
    let mut progress = progress::for_stderr(quiet, expected);
    let summary = match job.run(Some(&mut engine), progress.as_mut(), &interrupted) {
        Ok(summary) => summary,
        Err(error) => {
            // Memory of the workers would not count as free.
            drop(engine);
            return Err(suggestions.add_suggestion(error.into()));
        }
    };
    finish(session, request, engine, &prediction, Some(&summary))?;
    Ok(print_summary(&summary, quiet))
}

/// Prints a job's summary; a quiet job prints it only if answers are missing. Returns the exit
/// code.
fn print_summary(summary: &JobSummary, quiet: bool) -> Exit {
    if !quiet || summary.outcome() != JobOutcome::Complete {
        eprintln!("{summary}");
    }
    summary.outcome().into()
}

/// Plans a benchmark.
///
/// # Errors
/// See [`run`]; no worker of the run has started.
pub(crate) fn plan_benchmark(
    session: &Session<'_>,
    prompt_len: u32,
    gen_len: u32,
    measure: MeasurePolicy,
    interrupt: &Interrupt,
) -> anyhow::Result<PlacementDecision> {
    let context = prompt_len as usize + gen_len as usize;
    check_context(&session.model.config, context).map_err(|error| {
        let hint = if measure == MeasurePolicy::Always { MORE_POSITIONS } else { "" };
        let sentence = format!("--prompt-len {prompt_len} and --gen-len {gen_len}: {error} {hint}");
        ArgumentError(sentence.trim_end().to_owned())
    })?;
    let demand = benchmark_demand(session.batches, prompt_len, gen_len);
    let compression = choose_compression(session, Some(demand));
    decide_and_print(session, demand, compression, measure, interrupt)
}

/// Returns the workload of a benchmark.
fn benchmark_demand(batches: Option<BatchesChoice>, prompt_len: u32, gen_len: u32) -> JobWorkload {
    JobWorkload {
        sequences: match batches {
            Some(BatchesChoice::Fixed(batches)) => {
                usize::from(batches.count) * usize::from(batches.size)
            }
            Some(BatchesChoice::Auto) => usize::from(u16::MAX),
            None => DEFAULT_MAX_BATCH.into(),
        },
        max_prompt: prompt_len as usize,
        shared_prompt: 0,
        max_new: gen_len,
        logprobs: 0,
        evaluates_prompts: false,
        has_grammars: false,
        max_context: prompt_len as usize + gen_len as usize,
    }
}

fn run_benchmark(
    session: &Session<'_>,
    request: &RunRequest,
    prompt_len: u32,
    gen_len: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let decision =
        plan_benchmark(session, prompt_len, gen_len, MeasurePolicy::IfNeeded, interrupt)?;
    let expected = progress_expectation(&decision);
    let session = &decision.with_tuned_threads(session);
    let factors = factors(&decision);
    let PlacementDecision { plan, predicted, bounds, notes, nvme, .. } = decision;
    let prediction = RunPrediction {
        lengths: (prompt_len, gen_len),
        predicted,
        bounds,
        factors,
        groups: 1,
        decode_steps: u64::from(gen_len.saturating_sub(1)),
        notes,
    };
    print_prediction(session, &prediction);
    let benchmark = Benchmark {
        sequences: group_sequences(&plan.shape),
        prompt_len,
        gen_len,
        vocab_size: session.model.config.vocab_size,
        seed: session.options.seed,
    };
    let demand = benchmark_demand(session.batches, prompt_len, gen_len);
    let compression = choose_compression(session, Some(demand));
    let suggestions = FitSuggestions { session, demand, compression };
    let trace = request.trace.as_deref();
    let mut engine = start(session, plan, None, nvme.as_ref(), trace, interrupt)
        .map_err(|error| suggestions.add_suggestion(error))?;
    let quiet = session.options.is_quiet();
    match benchmark.run(&mut engine, progress::for_stderr(quiet, expected).as_mut()) {
        Ok(()) => {}
        Err(EngineError::Interrupted) => {
            eprintln!("interrupted; the benchmark has no results");
            return Ok(Exit::Interrupted);
        }
        Err(error) => {
            drop(engine);
            return Err(suggestions.add_suggestion(error.into()));
        }
    }
    finish(session, request, engine, &prediction, None)?;
    Ok(Exit::Done)
}

/// Returns the session with its batches reduced to those that `sequences` can fill.
fn with_smaller_batches<'m>(session: &Session<'m>, sequences: usize) -> Session<'m> {
    let mut session = session.clone();
    if let Some(BatchesChoice::Fixed(batches)) = session.batches {
        let batches = shrink_batches(&session, batches, sequences);
        session.batches = Some(BatchesChoice::Fixed(batches));
    }
    session
}

/// Ends the workers, and writes and prints the measurements.
fn finish(
    session: &Session<'_>,
    request: &RunRequest,
    engine: RunEngine,
    prediction: &RunPrediction,
    summary: Option<&JobSummary>,
) -> anyhow::Result<()> {
    let plan = engine.plan().clone();
    let measured = engine.finish().context("the trace file")?;
    run_history::record(session, &plan, prediction, &measured);
    let (report, counts) = (request.report.as_deref(), summary.map(job_counts));
    write_report(session, report, counts, &plan, &measured, prediction)
}
