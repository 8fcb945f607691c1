//! `coordinator score`: scores texts.

mod table;

use anyhow::Context;

use super::run::{heed_stdin, kernels_of};
use crate::boundary::codec::TextCodec;
use crate::boundary::serving::Serving;
use crate::cli::request::{ScoreRequest, Verbosity};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::job::reading::Reading;
use crate::openai::fingerprint::system_fingerprint;
use crate::openai::prompt::Limits;
use crate::score::line::LineOptions;
use crate::score::prepare::{ReadJob, ScoreError, ScoreOptions};
use crate::score::summary::Summary;
use crate::score::tokens::Prefix;
use crate::score::windows::Windows;
use crate::setup::formats::{described, formats};
use crate::setup::model::Opened;
use crate::setup::serving::{Served, case, slots_with_room, start};
use crate::setup::usage::Usage;

/// Default maximum number of tokens of a text's window.
const WINDOW: usize = 2048;

/// Scores the input of the command line.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &ScoreRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let run = &request.run;
    let quiet = run.verbosity == Verbosity::Quiet;
    heed_stdin(run, interrupt)?;
    let interrupted = || interrupt.is_requested();
    let opened = Opened::open(&run.model, run.seed)?;
    let config = &opened.config;
    if usize::from(request.shown.top) > config.vocab_size {
        let sentence =
            format!("--top {}: the vocabulary has {}", request.shown.top, config.vocab_size);
        return Err(Usage(sentence).into());
    }
    let options = ScoreOptions {
        input: request.input.clone(),
        output: request.output.clone(),
        mode: request.mode,
        windows: windows(request, config.max_positions)?,
        shown: request.shown,
    };
    let codec = opened.codec()?;
    let of_lines = LineOptions {
        limits: Limits {
            context: config.max_positions,
            vocab_size: config.vocab_size,
            unread_tokenizer: opened.unread_tokenizer(),
        },
        prefix: Prefix(config.bos_token_id.or_else(|| config.eos_token_ids.first().copied())),
        codec: codec.map(|codec| codec as &dyn TextCodec),
    };
    let mut reading = Reading::for_stderr(quiet, "lines read");
    let read = ReadJob::read(&options, &of_lines, &mut reading, &interrupted);
    let read = read.map_err(|error| match error {
        ScoreError::Job(error) => anyhow::Error::from(error),
        other => other.into(),
    })?;
    if let Some(codec) = codec {
        codec.keep_one();
    }
    let served = served(request, read.longest().unwrap_or(2))?;
    let job = read.open(fingerprint(request, &opened, served)?)?;
    if !quiet {
        job.errors().iter().chain(&job.resumed()).for_each(|line| eprintln!("{line}"));
    }
    let engine = job.needs_engine().then(|| start(run, &opened, served, interrupt)).transpose()?;
    let engine = engine.as_ref().map(|engine| engine as &dyn Serving);
    if let (Some(engine), Some(longest)) = (engine, served.context)
        && engine.limits().context < longest
    {
        let sentence = format!(
            "the longest prompt and continuation have {longest} tokens, and memory has caches for \
             {}: give --slots 1, more memory or shorter prompts",
            engine.limits().context
        );
        return Err(Usage(sentence).into());
    }
    let mut progress = Reading::for_stderr(quiet, "continuations scored");
    let summary = job.run(engine, &mut progress, &interrupted)?;
    finish(request, &summary, quiet)
}

/// Returns the windows into which a text is cut.
fn windows(request: &ScoreRequest, positions: usize) -> anyhow::Result<Windows> {
    let context = request.context.map_or_else(|| WINDOW.min(positions), |context| context as usize);
    if context > positions {
        let sentence = format!("--context {context}: the model has {positions} positions");
        return Err(Usage(sentence).into());
    }
    let stride = request.stride.map_or_else(|| context.div_ceil(2), |stride| stride as usize);
    if stride > context {
        let sentence =
            format!("--stride {stride} leaves tokens out between windows of {context} tokens");
        return Err(Usage(sentence).into());
    }
    Ok(Windows { context, stride })
}

/// Returns the configuration of an engine for sequences of at most `longest` tokens.
fn served(request: &ScoreRequest, longest: usize) -> anyhow::Result<Served> {
    let context = u32::try_from(longest.max(2)).unwrap_or(u32::MAX);
    let logprobs = request.shown.logprobs();
    let slots = slots_with_room(request.slots, context, logprobs).map_err(|of_slot| {
        Usage(format!(
            "--top {} of sequences of {context} tokens takes {of_slot} bytes in each slot, more \
             than are kept for it. Give a smaller --top, fewer --slots or shorter prompts",
            request.shown.top
        ))
    })?;
    Ok(Served { slots, context: Some(context), logprobs, ..Served::FOR_TEXTS })
}

/// Returns the fingerprint of the system that scores.
fn fingerprint(request: &ScoreRequest, opened: &Opened, served: Served) -> anyhow::Result<String> {
    let run = &request.run;
    let formats = described(&formats(run, opened, case(run, opened, served)?));
    let (weights, kernels) = (opened.weights_identity()?, kernels_of(run)?);
    let config = &opened.config;
    Ok(system_fingerprint(config, &weights, run.dtype, &formats, run.seed, &kernels))
}

/// Prints and writes the summary, and returns the exit code.
fn finish(request: &ScoreRequest, summary: &Summary, quiet: bool) -> anyhow::Result<Exit> {
    if !quiet || summary.exit() != Exit::Done {
        eprintln!("{}", table::render(summary));
    }
    if let Some(path) = &request.summary {
        let text = serde_json::to_string_pretty(summary)? + "\n";
        std::fs::write(path, text).with_context(|| format!("the summary {}", path.display()))?;
    }
    Ok(summary.exit())
}
