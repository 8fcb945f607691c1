//! From arguments to an engine that serves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use grammar::Grammars;
use program::compile::{CompileError, compile};
use program::plan::{Plan, RunShape};
use schedule::hybrid::Policy;
use workers::shared::protocol::StagedAt;

use super::form::first_that_fits;
use super::formats::{Case, formats, notes};
use super::hardware::Hardware;
use super::model::Opened;
use super::nodes;
use super::owners::{Owners, Placing};
use super::placement::{Decision, Measure, decide, say};
use super::plan_request::limits;
use super::progress_reporter::ProgressReporter;
use super::prompt_cache::prompts;
use super::select;
use super::staging::nvme::Nvme;
use super::usage::Usage;
use crate::cli::cuda::is_cuda;
use crate::cli::request::{Run, Verbosity};
use crate::cli::values::{Batches, BatchesChoice};
use crate::engine::launch::LaunchOptions;
use crate::engine::serving::{FormOf, ServingEngine, ServingOptions, StepTime};
use crate::interrupt::Interrupt;
use crate::job::demand::Demand;
use crate::text::codec::ProcessCodec;

/// Maximum number of rows of a step unless a chunk is specified. Larger steps compute no more rows
/// per second, and delay all sequences.
const STEP_ROWS: u32 = 512;

/// Number of positions with caches per slot, if sequences share the caches.
const SLOT_POSITIONS: u32 = 2048;

/// Positions of a page of the caches; small, so that most of a shared prefix is found.
pub(crate) const PAGE_POSITIONS: u32 = 256;
/// Positions of a page for contexts longer than [`LONG_CONTEXT`], for which attention over short
/// pages would take up to a sixth longer.
pub(crate) const LONG_PAGE_POSITIONS: u32 = 1024;
pub(crate) const LONG_CONTEXT: u32 = 32 << 10;

/// Default number of concurrent sequences, if they fit in memory.
pub(crate) const SLOTS: u16 = 32;

/// Configuration of a serving run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    /// Number of concurrent sequences; `None`: as many as fit in memory, up to a default.
    pub(crate) slots: Option<u16>,
    /// Maximum number of positions of a sequence; `None`: that of the model.
    pub(crate) context: Option<u32>,
    pub(crate) step: StepTime,
    /// Number of log-probabilities per token, its own included.
    pub(crate) logprobs: u16,
    /// Bytes of a step's logits that are kept at a time; those of each slot's newest token are kept
    /// in any case.
    pub(crate) logits_bytes: usize,
    /// Positions of a page of the caches.
    pub(crate) page_positions: u32,
    /// Owners of sequences, if these belong to the device or to the host.
    pub(crate) owners: Option<Owners>,
}

impl Served {
    /// Configuration for processing texts without a waiting user: steps take as long as their rows
    /// need, many logits are kept, and pages are small, so that little of a shared prefix is
    /// computed again.
    pub(crate) const FOR_TEXTS: Served = Served {
        slots: None,
        context: None,
        step: StepTime::Within(Duration::from_secs(600)),
        logprobs: 0,
        logits_bytes: 64 << 20,
        page_positions: 16,
        owners: None,
    };
}

/// Maximum bytes of the log-probabilities of all slots.
const LOGPROBS_BYTES: u64 = 1 << 30;

/// Returns the number of slots if each stores the log-probabilities of `context` positions: the
/// wanted number, or as many as fit if these are fewer than the default; `None` for the default.
///
/// # Errors
/// The wanted slots, or even a single one, do not fit. The error is the bytes of a slot.
pub(crate) fn slots_with_room(
    wanted: Option<u16>,
    context: u32,
    logprobs: u16,
) -> Result<Option<u16>, u64> {
    let of_slot = u64::from(context) * u64::from(logprobs) * 8;
    let most = LOGPROBS_BYTES.checked_div(of_slot).unwrap_or(u64::MAX);
    let most = u16::try_from(most).unwrap_or(u16::MAX);
    if most < wanted.unwrap_or(1) {
        return Err(of_slot);
    }
    Ok(wanted.or_else(|| (most < SLOTS).then_some(most)))
}

/// Plans, starts the workers and loads the model.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn start(
    run: &Run,
    opened: &Opened,
    served: Served,
    interrupt: &Interrupt,
) -> anyhow::Result<ServingEngine> {
    let context = context(opened, served)?;
    let served = Served { page_positions: page_positions(run, opened, served), ..served };
    let run = planned_run(run, served);
    if let Some(owners) = served.owners {
        let plan = owned(&run, opened, (served, owners, context))?;
        return engine((&run, opened, served), plan, Default::default(), interrupt);
    }
    let share = share(context, served);
    let (decision, plan) = match planned(&run, opened, (served, share, context), interrupt)? {
        (decision, Some(plan)) => (decision, plan),
        (_, None) => {
            let (decision, _) = planned(&run, opened, (served, context, context), interrupt)?;
            let plan = serving(&decision.plan, (served, rows(&run, served), context), 0)
                .context("the chosen placement cannot serve")?;
            (decision, plan)
        }
    };
    say(&run, &decision);
    let staged = decision.nvme.as_ref().map(Nvme::staged).unwrap_or_default();
    engine((&decision.tuned(&run), opened, served), plan, staged, interrupt)
}

/// Validates a plan and starts its engine.
fn engine(
    (run, opened, served): (&Run, &Opened, Served),
    plan: Plan,
    staged: Vec<StagedAt>,
    interrupt: &Interrupt,
) -> anyhow::Result<ServingEngine> {
    program::validate::validate(&plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    let hardware = Hardware::resolve(run, plan.map.uses_gpu());
    let grammars = opened.vocabulary()?;
    let forms = grammars.clone().zip(opened.shared_codec()?);
    let forms = forms.map(|(grammars, codec)| form_of(grammars, codec));
    let prompts = prompts(run, opened, &plan)?;
    let nodes = nodes::checked(run, &plan)?;
    let select_text = select::text(run, opened)?;
    let launch = hardware.launch(opened.weights.clone());
    let quiet = run.verbosity == Verbosity::Quiet;
    let launch = LaunchOptions { staged, grammars, prompts, nodes, select_text, quiet, ..launch };
    let reporter = Arc::new(ProgressReporter::begin("starting", run.verbosity));
    let starting = Arc::downgrade(&reporter);
    let signals = interrupt.clone();
    let loading = Box::new(move |done, total| {
        if let Some(reporter) = starting.upgrade() {
            report_loading(&reporter, done, total);
        }
        !signals.is_requested()
    });
    let tell = Box::new(|sentence: &str| eprintln!("{sentence}"));
    let step = served.step;
    let policy = served.owners.map_or(Policy::GpuOnly, |owners| owners.policy);
    let costs = None;
    let options = ServingOptions { plan, launch, forms, policy, costs, step, loading, tell };
    let engine = ServingEngine::start(options)?;
    drop(reporter);
    Ok(engine)
}

/// Reports the first load, and then the measurement of step durations that follows it.
fn report_loading(reporter: &ProgressReporter, done_bytes: u64, total_bytes: u64) {
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    if total_bytes > 0 && done_bytes >= total_bytes {
        reporter.update("measuring the duration of steps", None);
    } else {
        let (done, total) = (gib(done_bytes), gib(total_bytes));
        let share = done_bytes as f64 / total_bytes.max(1) as f64;
        reporter.update(&format!("loading {done:.2} of {total:.2} GiB"), Some(share));
    }
}

/// Returns the plan of a server whose sequences are owned by the device or by the host.
fn owned(
    run: &Run,
    opened: &Opened,
    (served, owners, context): (Served, Owners, u32),
) -> anyhow::Result<Plan> {
    let demand = demand(context, served);
    let case = first_that_fits(run, opened, Some(demand));
    let (formats, limits) = (formats(run, opened, case), limits(run, opened, demand));
    if run.verbosity >= Verbosity::Normal {
        notes(run, opened, case).iter().for_each(|note| eprintln!("{note}"));
    }
    let slots = served.slots.unwrap_or(SLOTS);
    let shape = RunShape {
        batches: 1,
        batch_size: slots,
        max_prompt: context,
        shared_prompt: 0,
        max_context: context,
        max_new: context - 1,
        logprobs: served.logprobs,
        micro_sequences: 1,
        // A row for each slot, and at least as many rows of prompts.
        prefill_chunk: rows(run, served).max(2 * u32::from(slots)),
        serves: true,
        page_positions: 0,
        kv_pages: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: run.dtype,
    };
    let placing = Placing { opened, formats: &formats, limits: &limits, shape };
    let plan = placing.plan(owners.device_slots)?;
    if is_cuda(run.device) {
        // The worker would report the same error, but only after it has started.
        workers::device::check(&plan).map_err(|error| Usage(error.to_string()))?;
    }
    Ok(plan)
}

/// Returns a function that compiles a grammar for a sampler, in the model's tokens.
fn form_of(grammars: Grammars, codec: Arc<ProcessCodec>) -> Arc<FormOf> {
    Arc::new(move |grammar| grammars.form(grammar.clone(), |text| codec.part(text)))
}

/// Returns the maximum number of positions of a sequence.
///
/// # Errors
/// A specified context that is longer than the model's.
fn context(opened: &Opened, served: Served) -> anyhow::Result<u32> {
    let most = u32::try_from(opened.config.max_positions).unwrap_or(u32::MAX);
    let context = served.context.unwrap_or(most);
    if context > most {
        let sentence = format!("--context {context}: the model has at most {most} positions");
        return Err(Usage(sentence).into());
    }
    Ok(context)
}

/// Returns the positions of a page. If pages are stored, all runs of a model use the same number.
fn page_positions(run: &Run, opened: &Opened, served: Served) -> u32 {
    match run.prompt_cache {
        None => served.page_positions,
        Some(_) if opened.config.max_positions > LONG_CONTEXT as usize => LONG_PAGE_POSITIONS,
        Some(_) => PAGE_POSITIONS,
    }
}

/// Returns the run as the planner sees it.
fn planned_run(run: &Run, served: Served) -> Run {
    let mut run = run.clone();
    run.batches = served.slots.map(|size| BatchesChoice::Given(Batches { count: 1, size }));
    run.prefill_chunk = Some(rows(&run, served));
    run
}

/// Returns the maximum number of rows of a step.
fn rows(run: &Run, served: Served) -> u32 {
    run.prefill_chunk.unwrap_or(STEP_ROWS).max(served.slots.unwrap_or(SLOTS).into())
}

/// Returns the number of positions with caches per slot. Few sequences are as long as the context,
/// and in paged caches they share the capacity.
fn share(context: u32, served: Served) -> u32 {
    let slots = u32::from(served.slots.unwrap_or(SLOTS));
    context.min(SLOT_POSITIONS.max(context.div_ceil(slots)))
}

/// Returns the demand that memory must satisfy.
fn demand(positions: u32, served: Served) -> Demand {
    Demand {
        sequences: usize::from(served.slots.unwrap_or(SLOTS)),
        max_prompt: positions as usize - 1,
        shared_prompt: 0,
        max_new: positions - 1,
        max_context: positions as usize,
        logprobs: served.logprobs,
        looks_at_prompts: false,
        forms: false,
    }
}

/// Returns the compression of a model that is served with this configuration.
///
/// # Errors
/// A context that is longer than the model's.
pub(crate) fn case(run: &Run, opened: &Opened, served: Served) -> anyhow::Result<Case> {
    let positions = share(context(opened, served)?, served);
    let run = planned_run(run, served);
    Ok(first_that_fits(&run, opened, Some(demand(positions, served))))
}

/// Decides on a placement for a job in which each sequence has the given number of positions, and
/// returns the plan of a serving run with that placement and paged caches; `None` if its caches
/// cannot be paged.
fn planned(
    run: &Run,
    opened: &Opened,
    (served, positions, context): (Served, u32, u32),
    interrupt: &Interrupt,
) -> anyhow::Result<(Decision, Option<Plan>)> {
    let demand = demand(positions, served);
    let case = first_that_fits(run, opened, Some(demand));
    // A serving run computes prompts in chunks regardless of their length, which not every
    // placement supports. The planner considers chunks only if they are shorter than the longest
    // prompt.
    let shortest = (demand.max_prompt as u32).saturating_sub(1).max(1);
    let chunk = run.prefill_chunk.map(|rows| rows.min(shortest));
    let in_pieces = Run { prefill_chunk: chunk, ..run.clone() };
    let decision = decide(&in_pieces, opened, demand, case, Measure::WhereNeeded, interrupt)?;
    let of_slot = positions.div_ceil(served.page_positions);
    let kv_pages = u32::from(decision.plan.shape.batch_size) * of_slot;
    let plan = serving(&decision.plan, (served, rows(run, served), context), kv_pages).ok();
    Ok((decision, plan))
}

/// Returns the plan of a serving run with the same placement, whose caches consist of the given
/// number of pages per batch; 0: of contiguous extents.
fn serving(
    plan: &Plan,
    (served, rows, context): (Served, u32, u32),
    kv_pages: u32,
) -> Result<Plan, CompileError> {
    let page_positions = if kv_pages > 0 { served.page_positions } else { 0 };
    let most = if kv_pages > 0 { kv_pages.saturating_mul(page_positions) } else { context };
    let max_context = context.min(most);
    let logits_rows = served.logits_bytes / (plan.config.vocab_size * size_of::<f32>());
    let shape = RunShape {
        serves: true,
        prefill_chunk: rows,
        page_positions,
        kv_pages,
        logits_rows: rows.min(u32::try_from(logits_rows).unwrap_or(u32::MAX)),
        max_context,
        max_prompt: max_context,
        max_new: max_context - 1,
        micro_sequences: 1,
        shared_prompt: 0,
        ..plan.shape
    };
    compile(&plan.config, &shape, &plan.map)
}
