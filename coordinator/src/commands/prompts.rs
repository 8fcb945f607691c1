//! A job of which lines ask for the log-probabilities of their prompts: it runs as a server does,
//! whose programs have logits of any row.

use std::sync::Arc;

use crate::cli::request::{Run, Verbosity};
use crate::cli::values::BatchesChoice;
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::job::on_serving::OnServing;
use crate::job::progress::{self, Expected};
use crate::job::run::Job;
use crate::job::summary::Summary;
use crate::setup::model::Opened;
use crate::setup::serving::{Served, slots_with_room, start};
use crate::setup::usage::Usage;

/// Runs what is left of the job.
///
/// # Errors
/// A sentence for the user.
pub(super) fn run(
    run: &Run,
    opened: &Opened,
    (job, demand): (Job<'_>, Demand),
    interrupt: &Interrupt,
) -> anyhow::Result<Summary> {
    check(run)?;
    let quiet = run.verbosity == Verbosity::Quiet;
    let served = served(run, demand)?;
    let grammars = job.grammars().into_iter().map(Arc::new).collect();
    let serving = start(run, opened, served, interrupt)?;
    let interrupted = || interrupt.is_requested();
    let mut engine = OnServing::new(&serving, grammars, &interrupted);
    let slots = crate::boundary::serving::Serving::limits(&serving).slots as usize;
    let mut progress = progress::for_stderr(quiet, Expected { slots, prior: None });
    Ok(job.run(Some(&mut engine), progress.as_mut(), &interrupted)?)
}

/// Refuses what only a run of its own programs can tell.
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
