//! `coordinator` without a subcommand: one run from arguments to exit code. It finds the model,
//! reads the requests, plans, validates the plan, launches the workers, runs, and reports.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use kernels::Variant;
use model::config_json::check_context;

use super::benchmark::Benchmark;
use super::prompts;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::EngineError;
use crate::cli::cuda::is_cuda;
use crate::cli::request::{Requests, Run, Verbosity, Work};
use crate::cli::values::BatchesChoice;
use crate::engine::RunEngine;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::job::prepare::{JobOptions, ModelFacts, ReadJob};
use crate::job::progress;
use crate::job::reading::Reading;
use crate::job::run::Job;
use crate::job::sink::Place;
use crate::job::summary::Summary;
use crate::openai::body::defaults::Defaults;
use crate::openai::fingerprint::system_fingerprint;
use crate::openai::prompt;
use crate::report::build;
use crate::report::build::RunPrediction;
use crate::report::file::RequestCounts;
use crate::report::table;
use crate::setup::described::MORE_POSITIONS;
use crate::setup::finished;
use crate::setup::form::best_that_fits;
use crate::setup::formats::{Case, cases, described, formats};
use crate::setup::memory_advice::Advice;
use crate::setup::model::Opened;
use crate::setup::placement::{Decision, Measure, plan, threads};
use crate::setup::plan_request::{DEFAULT_BATCH_MAX, filled, forms_bytes};
use crate::setup::prediction::{capacity, expected, factors, predict, print_prediction};
use crate::setup::start::start;
use crate::setup::usage::Usage;
use crate::setup::writable::check_writable;
use crate::terminal::print;

/// Refuses a report or a trace that would overwrite the input, the output or each other.
fn check_distinct(run: &Run) -> anyhow::Result<()> {
    let mut files: Vec<(&str, &Path)> = Vec::new();
    if let Work::Requests(requests) = &run.work {
        for (flag, place) in [("--input", &requests.input), ("--output", &requests.output)] {
            if let Place::File(path) = place {
                files.push((flag, path));
            }
        }
    }
    for (flag, path) in [("--report", &run.report), ("--trace", &run.trace)] {
        let Some(path) = path else { continue };
        if path == Path::new("-") {
            let answers_go_there =
                matches!(&run.work, Work::Requests(requests) if requests.output == Place::Standard);
            if flag == "--trace" || answers_go_there {
                return Err(Usage(format!("{flag} -: give {flag} a file of its own")).into());
            }
            continue;
        }
        if let Some((other, _)) = files.iter().find(|(_, known)| same_file(known, path)) {
            let shown = path.display();
            return Err(Usage(format!(
                "{flag} and {other} both name {shown}; give {flag} a file of its own"
            ))
            .into());
        }
        files.push((flag, path));
    }
    Ok(())
}

/// Returns true if two paths name the same file, which need not exist yet. Devices never count,
/// because they can be written twice.
fn same_file(a: &Path, b: &Path) -> bool {
    let (of_a, of_b) = (a.metadata().ok(), b.metadata().ok());
    match (of_a, of_b) {
        (Some(a), Some(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (None, None) => a == b || resolved(a).is_some_and(|a| Some(a) == resolved(b)),
        _ => false,
    }
}

/// Returns the path of a file that does not exist yet, with its folder resolved.
fn resolved(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new(".")).canonicalize().ok()?;
    Some(folder.join(path.file_name()?))
}

/// Checks that the report can be written, before anything is computed.
fn check_report(path: &Path) -> anyhow::Result<()> {
    check_writable(path).with_context(|| format!("the report {}", path.display()))
}

/// Runs a job or a benchmark.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(run: &Run, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    check_distinct(run)?;
    heed_stdin(run, interrupt)?;
    if let Some(path) = run.report.as_ref().filter(|path| *path != Path::new("-")) {
        check_report(path)?;
    }
    let opened = Opened::open(&run.model, run.seed)?;
    match &run.work {
        Work::Benchmark { prompt_len, gen_len } => {
            if let (Some(note), false) = (unread_stdin(), run.verbosity == Verbosity::Quiet) {
                eprintln!("{note}");
            }
            benchmark(run, &opened, *prompt_len, *gen_len, interrupt)
        }
        Work::Requests(_) => requests(run, &opened, interrupt),
    }
}

/// Requests the end of the run at the end of stdin, if the command line asks for it.
///
/// # Errors
/// The system cannot create a thread.
pub(super) fn heed_stdin(run: &Run, interrupt: &Interrupt) -> anyhow::Result<()> {
    if run.stop_at_eof {
        interrupt.ask_at_end_of(std::io::stdin()).context("the thread that reads stdin")?;
    }
    Ok(())
}

/// Returns a note if stdin is a file or a pipe, which a benchmark does not read.
fn unread_stdin() -> Option<&'static str> {
    let kind = Path::new("/dev/stdin").metadata().ok()?.file_type();
    (kind.is_file() || kind.is_fifo()).then_some(
        "Stdin is not read without --input -, so this is a benchmark with random prompts.",
    )
}

/// Returns the command line's defaults for requests.
fn defaults(requests: &Requests) -> anyhow::Result<Defaults> {
    let read = |path: &PathBuf| -> anyhow::Result<serde_json::Value> {
        let named = || format!("--json-schema {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        Ok(serde_json::from_str(&text).map_err(|error| Usage(format!("{}: {error}", named())))?)
    };
    let json_schema = requests.json_schema.as_ref().map(read).transpose()?;
    Ok(Defaults { json_schema, ..requests.defaults.clone() })
}

/// Returns the name of the kernels that compute the answers, as part of a `system_fingerprint`.
pub(super) fn kernels_of(run: &Run) -> anyhow::Result<String> {
    let variant = Variant::from_env()?.name();
    Ok(if is_cuda(run.device) { format!("{variant}_cuda") } else { variant.to_owned() })
}

/// Returns the options of a job.
fn job_options(run: &Run, requests: &Requests) -> anyhow::Result<JobOptions> {
    Ok(JobOptions {
        input: requests.input.clone(),
        output: requests.output.clone(),
        mode: requests.mode,
        chat: requests.chat,
        chats: requests.chats.clone(),
        max_tokens: requests.max_tokens,
        seed: run.seed,
        defaults: defaults(requests)?,
        ignore_unknown_fields: requests.ignore_unknown_fields,
    })
}

/// Chooses the formats in which a job computes, and returns them with the fingerprint of its
/// answers.
fn settle(
    run: &Run,
    opened: &Opened,
    demand: Option<Demand>,
    recorded: Option<&str>,
) -> anyhow::Result<(Case, String)> {
    let (kernels, weights) = (kernels_of(run)?, opened.weights_identity()?);
    let fingerprint = |case: Case| {
        let formats = described(&formats(run, opened, case));
        let config = &opened.config;
        system_fingerprint(config, &weights, run.dtype, &formats, run.seed, &kernels)
    };
    // `--compress auto` was resolved when the output was created, regardless of the memory that is
    // free now.
    let as_recorded = |case: &Case| recorded.is_some_and(|known| fingerprint(*case) == known);
    let case = cases(run, opened).into_iter().find(as_recorded);
    let case = case.unwrap_or_else(|| best_that_fits(run, opened, demand));
    Ok((case, fingerprint(case)))
}

/// Prints a job's notes and errors, and a line about a resumed output, before it runs.
fn print_job(job: &Job<'_>) {
    job.notes().iter().for_each(|note| eprintln!("{note}"));
    job.errors().iter().chain(&job.resumed()).for_each(|line| eprintln!("{line}"));
}

fn requests(run: &Run, opened: &Opened, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let Work::Requests(requests) = &run.work else { unreachable!("called for requests") };
    let codec = opened.codec()?;
    let facts = ModelFacts {
        name: opened.config.name.clone(),
        aliases: vec![run.model.name.clone()],
        limits: prompt::Limits {
            context: opened.config.max_positions,
            vocab_size: opened.config.vocab_size,
            unread_tokenizer: opened.unread_tokenizer(),
        },
        codec: codec.map(|codec| codec as &dyn TextCodec),
    };
    let quiet = run.verbosity == Verbosity::Quiet;
    let options = job_options(run, requests)?;
    let interrupted = || interrupt.is_requested();
    let mut reading = Reading::for_stderr(quiet, "lines read");
    let read = ReadJob::read(&options, facts, &mut reading, &interrupted)?;
    if let Some(codec) = codec {
        codec.keep_one();
    }
    let of_file = read.demand();
    let (case, fingerprint) = settle(run, opened, of_file, read.recorded_fingerprint())?;
    let job = read.open(fingerprint)?;
    if !quiet {
        print_job(&job);
    }
    let Some(demand) = job.demand() else {
        let summary = job.run(None, &mut progress::Silent, &interrupted)?;
        return Ok(print_summary(&summary, quiet));
    };
    if demand.looks_at_prompts || run.prompt_cache.is_some() {
        let summary = prompts::run(run, opened, (job, demand, case), interrupt)?;
        return Ok(print_summary(&summary, quiet));
    }
    // Based on the whole file, so that a resumed run has the same shape and needs no other profile.
    let run = &no_larger(run, opened, of_file.map_or(0, |of_file| of_file.sequences));
    // A model that does not support grammars is refused before anything is measured.
    let grammars = opened.grammars(job.grammars())?;
    let grammars = grammars.map(|grammars| grammars.within(forms_bytes(run, opened)));
    let decision = plan(run, opened, demand, case, Measure::WhereNeeded, interrupt)?;
    let run = &decision.tuned(run);
    let prediction = predict(&decision, demand, &job);
    print_prediction(run, &prediction);
    let expected = expected(&decision);
    let advice = Advice { run, opened, demand, case };
    let mut engine =
        start(run, opened, decision.plan, (grammars, decision.nvme.as_ref()), interrupt)
            .map_err(|error| advice.after(error))?;
    let mut progress = progress::for_stderr(quiet, expected);
    let summary = match job.run(Some(&mut engine), progress.as_mut(), &interrupted) {
        Ok(summary) => summary,
        Err(error) => {
            // Memory of the workers would not count as free.
            drop(engine);
            return Err(advice.after(error.into()));
        }
    };
    finish(run, engine, &prediction, Some(&summary))?;
    Ok(print_summary(&summary, quiet))
}

/// Prints a job's summary; a quiet job prints it only if answers are missing. Returns the exit
/// code.
fn print_summary(summary: &Summary, quiet: bool) -> Exit {
    if !quiet || summary.exit() != Exit::Done {
        eprintln!("{summary}");
    }
    summary.exit()
}

/// Plans a benchmark.
///
/// # Errors
/// See [`run`]; no worker of the run has started.
pub(crate) fn decide(
    run: &Run,
    opened: &Opened,
    prompt_len: u32,
    gen_len: u32,
    measure: Measure,
    interrupt: &Interrupt,
) -> anyhow::Result<Decision> {
    let context = prompt_len as usize + gen_len as usize;
    check_context(&opened.config, context).map_err(|error| {
        let hint = if measure == Measure::Always { MORE_POSITIONS } else { "" };
        let sentence = format!("--prompt-len {prompt_len} and --gen-len {gen_len}: {error} {hint}");
        Usage(sentence.trim_end().to_owned())
    })?;
    let demand = demand(run, prompt_len, gen_len);
    plan(run, opened, demand, best_that_fits(run, opened, Some(demand)), measure, interrupt)
}

/// Returns the workload of a benchmark.
fn demand(run: &Run, prompt_len: u32, gen_len: u32) -> Demand {
    Demand {
        sequences: match run.batches {
            Some(BatchesChoice::Given(batches)) => {
                usize::from(batches.count) * usize::from(batches.size)
            }
            Some(BatchesChoice::Auto) => usize::from(u16::MAX),
            None => DEFAULT_BATCH_MAX.into(),
        },
        max_prompt: prompt_len as usize,
        shared_prompt: 0,
        max_new: gen_len,
        logprobs: 0,
        looks_at_prompts: false,
        forms: false,
        max_context: prompt_len as usize + gen_len as usize,
    }
}

fn benchmark(
    run: &Run,
    opened: &Opened,
    prompt_len: u32,
    gen_len: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let decision = decide(run, opened, prompt_len, gen_len, Measure::WhereNeeded, interrupt)?;
    let expected = expected(&decision);
    let run = &decision.tuned(run);
    let factors = factors(&decision);
    let Decision { plan, predicted, between, notes, nvme, .. } = decision;
    let prediction = RunPrediction {
        lengths: (prompt_len, gen_len),
        predicted,
        between,
        factors,
        groups: 1,
        decode_steps: u64::from(gen_len.saturating_sub(1)),
        notes,
    };
    print_prediction(run, &prediction);
    let benchmark = Benchmark {
        sequences: capacity(&plan.shape),
        prompt_len,
        gen_len,
        vocab_size: opened.config.vocab_size,
        seed: run.seed,
    };
    let demand = demand(run, prompt_len, gen_len);
    let advice = Advice { run, opened, demand, case: best_that_fits(run, opened, Some(demand)) };
    let mut engine = start(run, opened, plan, (None, nvme.as_ref()), interrupt)
        .map_err(|error| advice.after(error))?;
    let quiet = run.verbosity == Verbosity::Quiet;
    match benchmark.run(&mut engine, progress::for_stderr(quiet, expected).as_mut()) {
        Ok(()) => {}
        Err(EngineError::Interrupted) => {
            eprintln!("interrupted; a benchmark keeps nothing");
            return Ok(Exit::Interrupted);
        }
        Err(error) => {
            drop(engine);
            return Err(advice.after(error.into()));
        }
    }
    finish(run, engine, &prediction, None)?;
    Ok(Exit::Done)
}

/// Returns the run with its batches reduced to those that `sequences` can fill.
fn no_larger(run: &Run, opened: &Opened, sequences: usize) -> Run {
    let mut run = run.clone();
    if let Some(BatchesChoice::Given(given)) = run.batches {
        run.batches = Some(BatchesChoice::Given(filled(&run, opened, given, sequences)));
    }
    run
}

/// Ends the workers, and writes and prints the measurements.
fn finish(
    run: &Run,
    engine: RunEngine,
    prediction: &RunPrediction,
    summary: Option<&Summary>,
) -> anyhow::Result<()> {
    let plan = engine.plan().clone();
    let (cpu_threads, gpu_threads) = threads(run, plan.map.uses_gpu());
    let mut by_worker = BTreeMap::from([("cpu worker".to_owned(), cpu_threads)]);
    if plan.map.uses_gpu() {
        by_worker.insert("gpu worker".to_owned(), gpu_threads);
    }
    let measured = engine.finish().context("the trace file")?;
    finished::keep(run, &plan, prediction, &measured);
    let mut report = build::build(&plan, &measured, prediction, by_worker);
    report.requests = summary.map(|summary| RequestCounts {
        answered: summary.answered,
        failed: summary.failed_lines.len(),
        cut: summary.cut_lines.len(),
        not_run: summary.not_run,
    });
    if let Some(path) = &run.report {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        if path == Path::new("-") {
            write!(std::io::stdout(), "{text}").or_else(quiet_pipe)?;
        } else {
            std::fs::write(path, text).with_context(|| format!("the report {}", path.display()))?;
        }
    }
    if run.verbosity != Verbosity::Quiet && report.groups > 0 {
        // Results may go to stdout; then tables go to stderr.
        let text = table::render(&report, run.verbosity == Verbosity::Verbose);
        let report_goes_there = run.report.as_deref() == Some(Path::new("-"));
        match run.work {
            Work::Benchmark { .. } if !report_goes_there => print(&text).or_else(quiet_pipe)?,
            _ => eprint!("{text}"),
        }
    }
    Ok(())
}

fn quiet_pipe(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}
