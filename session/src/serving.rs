//! From arguments to an engine that serves.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use batch::workload::JobWorkload;
use engine::launch::LaunchOptions;
use engine::serving::{CompileGrammarFn, ServingEngine, ServingOptions, StepTime, draft_obstacle};
use grammar::GrammarSet;
use planner::policy::name::PolicyName;
use program::compile::{CompileError, compile};
use program::map::ComputeDevice;
use program::plan::{Plan, RunShape};
use protocol::messages::StagedCopyConfig;
use scheduler::hybrid::SchedulingPolicy;
use tokenizer_host::codec::ProcessCodec;

use super::argument_error::ArgumentError;
use super::checkpoints::with_checkpoints;
use super::compression::first_fitting_compression;
use super::draft_model::{DraftCaches, DraftModel};
use super::formats::{RunCompression, notes, resolve_formats};
use super::hardware::Hardware;
use super::hybrid_placement::{HybridConfig, HybridPlacement};
use super::kv_select;
use super::model::ModelHandle;
use super::numa_nodes;
use super::page_size::page_positions_of;
use super::placement::{MeasurePolicy, PlacementDecision, decide, print_decision};
use super::plan_request::limits;
use super::progress_reporter::ProgressReporter;
use super::prompt_cache::prompt_store_config;
use super::staging::nvme::Nvme;
use super::start::create_trace_file;
use crate::cuda_device::is_cuda;
use crate::interrupt::Interrupt;
use crate::request::{PlacementChoice, Verbosity};
use crate::session::Session;
use crate::values::{Batches, BatchesChoice};

/// Maximum number of rows of a step unless a chunk is specified. Larger steps compute no more rows
/// per second, and delay all sequences.
const DEFAULT_STEP_ROWS: u32 = 512;

/// Number of positions with caches per slot, if sequences share the caches.
const DEFAULT_SLOT_POSITIONS: u32 = 2048;

/// Positions of a page of the caches; small, so that most of a shared prefix is found.
pub const PAGE_POSITIONS: u32 = 256;
/// Positions of a page for contexts longer than [`LONG_CONTEXT`], for which attention over short
/// pages would take up to a sixth longer.
pub const LONG_PAGE_POSITIONS: u32 = 1024;
/// Maximum context, in positions, for which pages are short.
pub const LONG_CONTEXT: u32 = 32 << 10;

/// Default number of concurrent sequences, if they fit in memory.
pub(crate) const DEFAULT_SLOTS: u16 = 32;

/// Configuration of a serving run.
#[derive(Debug, Clone, Copy)]
pub struct ServingConfig {
    /// Number of concurrent sequences; `None`: as many as fit in memory, up to a default.
    pub slots: Option<u16>,
    /// Maximum number of positions of a sequence; `None`: that of the model.
    pub context: Option<u32>,
    pub step: StepTime,
    /// Number of log-probabilities per token, its own included.
    pub logprobs: u16,
    /// Bytes of a step's logits that are kept at a time; those of each slot's newest token are kept
    /// in any case.
    pub logits_bytes: usize,
    /// Number of rows whose logits are kept regardless of their bytes.
    pub min_logits_rows: u32,
    /// Positions of a page of the caches, or of the next longer page that suits the model.
    pub page_positions: u32,
    /// Owners of sequences, if these belong to the device or to the host.
    pub hybrid: Option<HybridConfig>,
    /// Measures the run for a report.
    pub records: bool,
}

impl ServingConfig {
    /// Configuration for processing texts without a waiting user: steps take as long as their rows
    /// need, many logits are kept, and pages are small, so that little of a shared prefix is
    /// computed again.
    pub const FOR_TEXTS: ServingConfig = ServingConfig {
        slots: None,
        context: None,
        step: StepTime::Target(Duration::from_secs(600)),
        logprobs: 0,
        logits_bytes: 64 << 20,
        min_logits_rows: 0,
        page_positions: 16,
        hybrid: None,
        records: false,
    };
}

/// Maximum bytes of the log-probabilities of all slots.
const LOGPROBS_BYTES: u64 = 1 << 30;

/// Returns the number of slots if each stores the log-probabilities of `context` positions: the
/// wanted number, or as many as fit if these are fewer than the default; `None` for the default.
///
/// # Errors
/// The wanted slots, or even a single one, do not fit. The error is the bytes of a slot.
pub fn slots_within_capacity(
    requested: Option<u16>,
    context: u32,
    logprobs: u16,
) -> Result<Option<u16>, u64> {
    let slot_bytes = u64::from(context) * u64::from(logprobs) * 8;
    let max_slots = LOGPROBS_BYTES.checked_div(slot_bytes).unwrap_or(u64::MAX);
    let max_slots = u16::try_from(max_slots).unwrap_or(u16::MAX);
    if max_slots < requested.unwrap_or(1) {
        return Err(slot_bytes);
    }
    Ok(requested.or_else(|| (max_slots < DEFAULT_SLOTS).then_some(max_slots)))
}

/// Plans, starts the workers and loads the model.
///
/// # Errors
/// A sentence for the user.
pub fn start(
    session: &Session<'_>,
    config: ServingConfig,
    trace: Option<&Path>,
    interrupt: &Interrupt,
) -> anyhow::Result<ServingEngine> {
    let context = max_context(session.model, config)?;
    let config = ServingConfig { page_positions: page_positions(session, config), ..config };
    let draft_model = DraftModel::open(session)?;
    let reserved = match &draft_model {
        Some(model) => {
            let caches = draft_caches(config, context, config.slots.unwrap_or(DEFAULT_SLOTS));
            let limits = limits(session, serving_demand(caches.slot_positions, config));
            Some(model.reserve_memory(session, caches, &limits)?)
        }
        None => None,
    };
    let session = &with_batches(reserved.as_ref().unwrap_or(session), config);
    let launch = |session: &Session<'_>, plan, staged| {
        let from = EngineSources { plan, staged, draft_model: draft_model.as_ref() };
        start_engine(session, config, from, trace, interrupt)
    };
    if let Some(hybrid) = config.hybrid {
        return launch(session, hybrid_plan(session, config, hybrid, context)?, Vec::new());
    }
    let slot_positions = positions_per_slot(context, config);
    let with_pages = match has_contiguous_caches(session)? {
        true => None,
        false => {
            let decided = decide_with_pages(session, config, slot_positions, context, interrupt)?;
            decided.1.map(|plan| (decided.0, plan))
        }
    };
    let (decision, plan) = match with_pages {
        Some(decided) => decided,
        None => {
            let (decision, _) = decide_with_pages(session, config, context, context, interrupt)?;
            let rows = max_step_rows(session, config);
            let plan = serving_plan(&decision.plan, config, rows, context, 0)
                .context("the chosen placement cannot serve")?;
            (decision, plan)
        }
    };
    print_decision(session, &decision);
    let limits = limits(session, serving_demand(slot_positions, config));
    let plan = with_checkpoints(session, plan, &limits);
    let staged = decision.nvme.as_ref().map(Nvme::staged).unwrap_or_default();
    launch(&decision.with_tuned_threads(session), plan, staged)
}

/// Plan of an engine, and the files that it reads.
struct EngineSources<'a> {
    plan: Plan,
    staged: Vec<StagedCopyConfig>,
    draft_model: Option<&'a DraftModel>,
}

/// Validates a plan and starts its engine.
fn start_engine(
    session: &Session<'_>,
    config: ServingConfig,
    EngineSources { plan, staged, draft_model }: EngineSources<'_>,
    trace: Option<&Path>,
    interrupt: &Interrupt,
) -> anyhow::Result<ServingEngine> {
    program::validate::validate(&plan)
        .context("the compiled program is not safe to run; this is a defect, please report it")?;
    check_drafts(session, &plan)?;
    let (max_drafts, drafts_all) = (session.options.max_drafts, session.options.drafts_all);
    let hardware = Hardware::resolve(session, plan.map.uses_gpu());
    let caches = draft_caches_of(config, &plan.shape);
    let draft_model = draft_model.map(|model| model.setup(session, caches, hardware.threads.cpu));
    let grammars = session.model.vocabulary()?;
    let compile_grammar = grammars.clone().zip(session.model.shared_codec()?);
    let compile_grammar =
        compile_grammar.map(|(grammars, codec)| grammar_compiler(grammars, codec));
    let prompt_cache = prompt_store_config(session, &plan)?;
    let memory_nodes = numa_nodes::validated_nodes(session, &plan)?;
    let select_text = kv_select::calibration_tokens(session)?;
    let launch = hardware.launch_options(session.model.weights.clone());
    let quiet = session.options.is_quiet();
    let launch = LaunchOptions {
        staged,
        grammars,
        prompt_cache,
        memory_nodes,
        select_text,
        draft_model: draft_model.transpose()?,
        quiet,
        ..launch
    };
    let reporter = Arc::new(ProgressReporter::start("starting", session.options.verbosity));
    let starting = Arc::downgrade(&reporter);
    let signals = interrupt.clone();
    let on_load_progress = Box::new(move |done, total| {
        if let Some(reporter) = starting.upgrade() {
            report_loading(&reporter, done, total);
        }
        !signals.is_requested()
    });
    let print = Box::new(|sentence: &str| eprintln!("{sentence}"));
    let step_time = config.step;
    let policy = config.hybrid.map_or(SchedulingPolicy::GpuOnly, |owners| owners.policy);
    let costs = None;
    let trace_file = if config.records { create_trace_file(trace, &plan)? } else { None };
    let options = ServingOptions {
        plan,
        launch,
        compile_grammar,
        policy,
        costs,
        step_costs: None,
        step_time,
        max_drafts,
        drafts_all,
        on_load_progress,
        records: config.records,
        trace_file,
        log: print,
    };
    let engine = ServingEngine::start(options)?;
    drop(reporter);
    Ok(engine)
}

/// Checks that tokens of all sequences can be drafted, if that was requested.
fn check_drafts(session: &Session<'_>, plan: &Plan) -> Result<(), ArgumentError> {
    let options = &session.options;
    let obstacle = draft_obstacle(plan, options.max_drafts).filter(|_| options.drafts_all);
    if let Some(obstacle) = obstacle {
        let option = match options.draft_model.is_some() {
            _ if options.uses_prediction_layer => "--speculate mtp",
            true => "--draft-model",
            false => "--speculate ngram",
        };
        return Err(ArgumentError(format!("{option} is not possible: {obstacle}")));
    }
    let samples_on_device = plan.map.prefill.head == ComputeDevice::Gpu;
    if options.uses_prediction_layer && is_cuda(options.device) && samples_on_device {
        // The worker of a device does not copy the hidden states of all rows to the host.
        let sentence = "--speculate mtp is not possible: a CUDA device samples; use --policy \
                        cpu-only, --speculate ngram or --draft-model";
        return Err(ArgumentError(sentence.to_owned()));
    }
    Ok(())
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
fn hybrid_plan(
    session: &Session<'_>,
    config: ServingConfig,
    hybrid: HybridConfig,
    context: u32,
) -> anyhow::Result<Plan> {
    let demand = serving_demand(context, config);
    let compression = first_fitting_compression(session, Some(demand));
    let (formats, limits) = (resolve_formats(session, compression), limits(session, demand));
    if session.options.verbosity >= Verbosity::Normal {
        notes(session, compression).iter().for_each(|note| eprintln!("{note}"));
    }
    let slots = config.slots.unwrap_or(DEFAULT_SLOTS);
    let shape = RunShape {
        batches: 1,
        batch_size: slots,
        max_prompt: context,
        shared_prompt: 0,
        max_context: context,
        max_new: context - 1,
        logprobs: config.logprobs,
        micro_sequences: 1,
        // A row for each slot, and at least as many rows of prompts.
        prefill_chunk: max_step_rows(session, config).max(2 * u32::from(slots)),
        serves: true,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: session.options.dtype,
    };
    let placing =
        HybridPlacement { model: session.model, formats: &formats, limits: &limits, shape };
    let plan = placing.plan(hybrid.device_slots)?;
    if is_cuda(session.options.device) {
        // The worker would report the same error, but only after it has started.
        workers::device::check(&plan).map_err(|error| ArgumentError(error.to_string()))?;
    }
    Ok(plan)
}

/// Returns a function that compiles a grammar for a sampler, in the model's tokens.
fn grammar_compiler(grammars: GrammarSet, codec: Arc<ProcessCodec>) -> Arc<CompileGrammarFn> {
    Arc::new(move |grammar| grammars.encode(grammar.clone(), |text| codec.try_encode_part(text)))
}

/// Returns the maximum number of positions of a sequence.
///
/// # Errors
/// A specified context that is longer than the model's.
fn max_context(model: &ModelHandle, config: ServingConfig) -> anyhow::Result<u32> {
    let model_max = u32::try_from(model.config.max_positions).unwrap_or(u32::MAX);
    let context = config.context.unwrap_or(model_max);
    if context > model_max {
        let sentence = format!("--context {context}: the model has at most {model_max} positions");
        return Err(ArgumentError(sentence).into());
    }
    Ok(context)
}

/// Returns the positions of a page. If pages are stored, all runs of a model use the same number.
fn page_positions(session: &Session<'_>, config: ServingConfig) -> u32 {
    let model = &session.model.config;
    let wanted = match session.options.prompt_cache {
        None => config.page_positions,
        Some(_) if model.max_positions > LONG_CONTEXT as usize => LONG_PAGE_POSITIONS,
        Some(_) => PAGE_POSITIONS,
    };
    page_positions_of(model, wanted)
}

/// Returns true if each sequence's caches are contiguous, as `--policy ellm` has them.
///
/// # Errors
/// A store of prompt prefixes, which consists of pages.
fn has_contiguous_caches(session: &Session<'_>) -> anyhow::Result<bool> {
    let is_ellm = matches!(session.options.placement, PlacementChoice::Named(PolicyName::Ellm));
    if is_ellm && session.options.prompt_cache.is_some() {
        let sentence = "--prompt-cache stores pages of caches, which --policy ellm does not have; \
                        use --policy cpu-only";
        return Err(ArgumentError(sentence.to_owned()).into());
    }
    Ok(is_ellm)
}

/// Returns the session as the planner sees it.
fn with_batches<'m>(session: &Session<'m>, config: ServingConfig) -> Session<'m> {
    let mut session = session.clone();
    session.batches = config.slots.map(|size| BatchesChoice::Fixed(Batches { count: 1, size }));
    session.options.prefill_chunk = Some(max_step_rows(&session, config));
    session
}

/// Returns the maximum number of rows of a step.
fn max_step_rows(session: &Session<'_>, config: ServingConfig) -> u32 {
    session
        .options
        .prefill_chunk
        .unwrap_or(DEFAULT_STEP_ROWS)
        .max(config.slots.unwrap_or(DEFAULT_SLOTS).into())
}

/// Returns the number of positions with caches per slot. Few sequences are as long as the context,
/// and in paged caches they share the capacity.
fn positions_per_slot(context: u32, config: ServingConfig) -> u32 {
    let slots = u32::from(config.slots.unwrap_or(DEFAULT_SLOTS));
    context.min(DEFAULT_SLOT_POSITIONS.max(context.div_ceil(slots)))
}

/// Returns the sizes of a draft model's caches for a run with the given number of slots.
fn draft_caches(config: ServingConfig, context: u32, slots: u16) -> DraftCaches {
    let (slot_positions, page_positions) =
        (positions_per_slot(context, config), config.page_positions);
    DraftCaches { slots, context, slot_positions, page_positions }
}

/// Returns the sizes of a draft model's caches for a run of this shape.
fn draft_caches_of(config: ServingConfig, shape: &RunShape) -> DraftCaches {
    let slots = shape.batches.saturating_mul(shape.batch_size);
    draft_caches(config, shape.max_context, slots)
}

/// Returns the demand that memory must satisfy.
fn serving_demand(positions: u32, config: ServingConfig) -> JobWorkload {
    JobWorkload {
        sequences: usize::from(config.slots.unwrap_or(DEFAULT_SLOTS)),
        max_prompt: positions as usize - 1,
        shared_prompt: 0,
        max_new: positions - 1,
        max_context: positions as usize,
        logprobs: config.logprobs,
        evaluates_prompts: false,
        has_grammars: false,
    }
}

/// Returns the compression of a model that is served with this configuration.
///
/// # Errors
/// A context that is longer than the model's.
pub fn serving_compression(
    session: &Session<'_>,
    config: ServingConfig,
) -> anyhow::Result<RunCompression> {
    let positions = positions_per_slot(max_context(session.model, config)?, config);
    let session = with_batches(session, config);
    Ok(first_fitting_compression(&session, Some(serving_demand(positions, config))))
}

/// Decides on a placement for a job in which each sequence has the given number of positions, and
/// returns the plan of a serving run with that placement and paged caches; `None` if its caches
/// cannot be paged.
fn decide_with_pages(
    session: &Session<'_>,
    config: ServingConfig,
    positions: u32,
    context: u32,
    interrupt: &Interrupt,
) -> anyhow::Result<(PlacementDecision, Option<Plan>)> {
    let demand = serving_demand(positions, config);
    let compression = first_fitting_compression(session, Some(demand));
    // A serving run computes prompts in chunks regardless of their length, which not every
    // placement supports. The planner considers chunks only if they are shorter than the longest
    // prompt.
    let shortest = (demand.max_prompt as u32).saturating_sub(1).max(1);
    let chunk = session.options.prefill_chunk.map(|rows| rows.min(shortest));
    let mut chunked = session.clone();
    chunked.options.prefill_chunk = chunk;
    let decision = decide(&chunked, demand, compression, MeasurePolicy::IfNeeded, interrupt)?;
    let slot_pages = positions.div_ceil(config.page_positions);
    let kv_pages = u32::from(decision.plan.shape.batch_size) * slot_pages;
    let plan =
        serving_plan(&decision.plan, config, max_step_rows(session, config), context, kv_pages)
            .ok();
    Ok((decision, plan))
}

/// Returns the plan of a serving run with the same placement, whose caches consist of the given
/// number of pages per batch; 0: of contiguous extents.
fn serving_plan(
    plan: &Plan,
    config: ServingConfig,
    rows: u32,
    context: u32,
    kv_pages: u32,
) -> Result<Plan, CompileError> {
    let page_positions = if kv_pages > 0 { config.page_positions } else { 0 };
    let max_positions =
        if kv_pages > 0 { kv_pages.saturating_mul(page_positions) } else { context };
    let max_context = context.min(max_positions);
    let logits_rows = config.logits_bytes / (plan.config.vocab_size * size_of::<f32>());
    let logits_rows = u32::try_from(logits_rows).unwrap_or(u32::MAX).max(config.min_logits_rows);
    let shape = RunShape {
        serves: true,
        prefill_chunk: rows,
        page_positions,
        kv_pages,
        logits_rows: rows.min(logits_rows),
        max_context,
        max_prompt: max_context,
        max_new: max_context - 1,
        micro_sequences: 1,
        shared_prompt: 0,
        ..plan.shape
    };
    compile(&plan.config, &shape, &plan.map)
}
