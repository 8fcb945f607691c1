//! Jobs that run as a server does: their lines ask for log-probabilities of prompts, which need
//! programs with logits of any row, or they store prompts, which needs caches in pages.

use std::sync::Arc;

use crate::boundary::serving::{Serving, Status};
use crate::cli::request::{Run, Verbosity};
use crate::cli::values::BatchesChoice;
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::job::on_serving::OnServing;
use crate::job::progress::{self, Expected};
use crate::job::run::Job;
use crate::job::summary::Summary;
use crate::setup::formats::Case;
use crate::setup::model::Opened;
use crate::setup::serving::{Served, slots_with_room, start};
use crate::setup::usage::Usage;

/// Runs the remaining part of the job.
///
/// # Errors
/// An error whose message is meant for the user.
pub(super) fn run(
    run: &Run,
    opened: &Opened,
    (job, demand, case): (Job<'_>, Demand, Case),
    interrupt: &Interrupt,
) -> anyhow::Result<Summary> {
    check(run)?;
    let quiet = run.verbosity == Verbosity::Quiet;
    let served = served(run, demand)?;
    let grammars = job.grammars().into_iter().map(Arc::new).collect();
    let run = &Run { compress: case.choice(), ..run.clone() };
    let serving = start(run, opened, served, interrupt)?;
    let limits = serving.limits();
    if served.context.is_some_and(|context| context > limits.context) {
        return Err(Usage(too_long(demand, limits.context)).into());
    }
    let interrupted = || interrupt.is_requested();
    let mut engine = OnServing::new(&serving, grammars, &interrupted);
    let slots = limits.slots as usize;
    let mut progress = progress::for_stderr(quiet, Expected { slots, prior: None });
    let summary = job.run(Some(&mut engine), progress.as_mut(), &interrupted)?;
    if !quiet && run.prompt_cache.is_some() {
        eprintln!("{}", found(&serving.status()));
    }
    Ok(summary)
}

/// Returns the message for a sequence that needs more positions than there are caches for.
fn too_long(demand: Demand, context: u32) -> String {
    format!(
        "the longest prompt and answer have {} tokens, and memory has caches for {context}: give \
         --batches 1x1, more memory or shorter prompts",
        demand.max_context
    )
}

/// Describes the share of the prompts' tokens that was not computed again.
fn found(status: &Status) -> String {
    let (found, stored) = (status.cached_tokens, status.store.tokens);
    let all = found + status.prompt_tokens;
    format!(
        "{found} of {all} tokens of prompts were not computed again; {stored} were read from the \
         prompt cache"
    )
}

/// Refuses options that only a run with its own programs supports. With `--prompt-cache`, the
/// command line has already refused them.
fn check(run: &Run) -> anyhow::Result<()> {
    let given = [("--report", run.report.is_some()), ("--trace", run.trace.is_some())];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((flag, _)) => Err(Usage(format!(
            "{flag}: lines of the input ask for \"prompt_logprobs\", or for \"echo\" with \
             \"logprobs\" or without new tokens; such a job runs as a server does, which writes \
             none. Leave {flag} out, or put these lines into a file of their own"
        ))
        .into()),
    }
}

fn served(run: &Run, demand: Demand) -> anyhow::Result<Served> {
    let slots = match run.batches {
        Some(BatchesChoice::Given(given)) => Some(given.count.saturating_mul(given.size)),
        Some(BatchesChoice::Auto) | None => None,
    };
    let context = u32::try_from(demand.max_context.max(2)).unwrap_or(u32::MAX);
    let slots = slots_with_room(slots, context, demand.logprobs).map_err(|of_slot| {
        Usage(format!(
            "the log-probabilities of prompts and answers of up to {context} tokens take {of_slot} \
             bytes in each slot, more than are kept for them. Give smaller --batches, or ask for \
             fewer of the most likely tokens"
        ))
    })?;
    Ok(Served { slots, context: Some(context), logprobs: demand.logprobs, ..Served::FOR_TEXTS })
}
