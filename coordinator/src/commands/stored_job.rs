//! A batch job whose prompts are stored, and found where they were: it runs as a server does.

use std::time::Duration;

use crate::boundary::serving::Serving;
use crate::cli::request::{Run, Verbosity};
use crate::cli::values::{Batches, BatchesChoice};
use crate::engine::serving::ServedJob;
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::job::progress::{Expected, for_stderr};
use crate::job::run::Job;
use crate::job::summary::Summary;
use crate::setup::formats::Case;
use crate::setup::model::Opened;
use crate::setup::serving::{PAGE_POSITIONS, SLOTS, Served, start};
use crate::setup::usage::Usage;

/// Nobody reads along, so steps may be long.
const STEP: Duration = Duration::from_secs(1);

/// Runs the job in the form that was settled.
///
/// # Errors
/// A sentence for the user.
pub(super) fn run(
    run: &Run,
    opened: &Opened,
    (job, demand, case): (Job<'_>, Demand, Case),
    interrupt: &Interrupt,
) -> anyhow::Result<Summary> {
    let quiet = run.verbosity == Verbosity::Quiet;
    let slots = match run.batches {
        Some(BatchesChoice::Given(Batches { count, size })) => Some(count.saturating_mul(size)),
        _ => u16::try_from(demand.sequences).ok().filter(|sequences| *sequences < SLOTS),
    };
    let context = u32::try_from(demand.max_context).unwrap_or(u32::MAX).max(2);
    let served = Served {
        slots,
        context: Some(context),
        step: STEP,
        logprobs: demand.logprobs,
        logits_bytes: 0,
        page_positions: PAGE_POSITIONS,
    };
    let grammars = job.grammars();
    let run = Run { compress: case.choice(), ..run.clone() };
    let engine = start(&run, opened, served, interrupt)?;
    let limits = engine.limits();
    if limits.context < context {
        let sentence = format!(
            "the longest prompt and answer have {context} tokens, and memory has caches for {}: \
             give --batches 1x1, more memory or shorter prompts",
            limits.context
        );
        return Err(Usage(sentence).into());
    }
    let signals = interrupt.clone();
    let mut engine = ServedJob::new(engine, grammars, Box::new(move || signals.is_requested()));
    let expected = Expected { slots: limits.slots as usize, prior: None };
    let mut progress = for_stderr(quiet, expected);
    let summary = job.run(Some(&mut engine), progress.as_mut(), &|| interrupt.is_requested())?;
    let status = engine.status();
    if !quiet {
        let (found, stored) = (status.cached_tokens, status.store.tokens);
        eprintln!(
            "{found} of {} tokens of prompts were not computed again; {stored} were read from the \
             prompt cache",
            found + status.prompt_tokens
        );
    }
    Ok(summary)
}
