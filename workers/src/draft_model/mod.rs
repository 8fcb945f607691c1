//! Draft model: a second, smaller model with a plan, caches and a lane of its own, in the worker
//! that samples, which drafts tokens of the run's sequences.
//!
//! Its step table has a slot for each of the run's. To draft tokens of a sequence, its slot becomes
//! a copy of the sequence that has these further tokens to come, and a group of steps computes
//! what its caches lack and draws them, with the random numbers of the run. The lane that samples
//! waits meanwhile. No answer depends on a draft.
//!
//! A model for multi-token prediction also reads hidden states of the run (`hidden_states`): row p
//! of its copy of a sequence has those of position p and the token after it.

mod hidden_states;
mod measure;
mod pages;
mod store_hidden;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kernels::{PoolOptions, Variant};
use program::plan::Plan;
use program::step_table::{Field, SlotState};
use protocol::draft_sequence::{
    CopiedTokens, SequenceRef, common_prefix_len, offer_copy, take_drafts,
};
use protocol::drafts::{Drafter, HiddenRows, set_acceptance};
use protocol::messages::{DraftModelSetup, WorkerSetup};
use protocol::prompt_lookup::PromptLookup;
use protocol::release::SERVING_STAGES;
use protocol::serving::{clear_table, list_step, slot_state};
use protocol::table::StepTable;
use scheduler::{DraftAcceptance, Sequence, StepCostCurve, limit_drafts};
use shm::{Control, Mapping};

use crate::error::{LaneError, WorkerError};
use crate::hidden_store::{PredictedStates, SharedHiddenStore};
use crate::lane::{LaneRunner, LaneSetup};
use crate::load::{LoadError, OpenWeights, load};
use crate::memory::Memories;
use crate::setup::{LaneOptions, SharedState, lane_executor};
use crate::shared_drafter::SharedDrafter;
use crate::stall::StallBounds;
use hidden_states::HiddenStates;
use pages::SlotPages;

/// Bound on a group of steps, far above the duration of the longest one.
const GROUP_TIMEOUT: Duration = Duration::from_secs(600);
/// Minimum size of a segment: a mapping needs a page.
const SEGMENT_BYTES_MIN: u64 = 4096;
/// Estimated probability that a draft is accepted with which a sequence begins, and which it gets
/// again after some new tokens: without a draft nothing is learnt.
const INITIAL_ACCEPTANCE: f32 = 0.8;
/// Number of these tokens.
const RETRY_TOKENS: u32 = 128;

/// A draft model; see the module documentation.
#[derive(Debug)]
pub(crate) struct DraftModel {
    plan: Arc<Plan>,
    control: Control,
    table: StepTable,
    lane: Option<JoinHandle<Result<(), LaneError>>>,
    /// Vocabulary size of the run's model, of which drafts must be tokens.
    vocab_size: usize,
    /// Number of slots of a batch of the run.
    batch_size: usize,
    slots: Vec<DraftSlot>,
    pages: SlotPages,
    /// Hidden states of the run's sequences, for multi-token prediction.
    hidden: Option<HiddenStates>,
    /// Costs of a step by its rows.
    costs: StepCostCurve,
    /// Scratch of [`list_step`].
    sequences: Vec<Sequence>,
}

/// Progress of a slot.
#[derive(Debug, Clone, Copy, Default)]
struct DraftSlot {
    /// Arrival number and prompt length of the run's sequence; `None` without one.
    sequence: Option<(u32, u32)>,
    /// Number of leading tokens of the sequence that the copy leaves out.
    skipped: usize,
    /// Number of leading tokens of the copy whose hidden states are known.
    hidden: usize,
    /// Number of leading tokens of the copy that are those of the sequence, as far as is known.
    copied: usize,
    /// Number of leading tokens of the copy whose keys and values are in the caches.
    computed: usize,
    /// True if the sequence has tokens that the draft model lacks.
    is_unsupported: bool,
    /// Number of drafts that the current group computes; `None` if the slot takes no part in it.
    drafts: Option<usize>,
}

/// Takes the draft model out of a setup and starts it; `None` if there is none. `options` are those
/// of the lane that samples.
///
/// # Errors
/// Fails like [`DraftModel::start`].
pub(crate) fn start_drafter(
    setup: &mut WorkerSetup,
    options: &LaneOptions,
    open: &OpenWeights,
) -> Result<Option<SharedDrafter>, WorkerError> {
    let Some(draft) = setup.draft_model.take() else { return Ok(None) };
    let threads = usize::from(draft.threads.max(1));
    let mut pool = PoolOptions { threads, ..options.pool.clone() };
    if pool.cpus.len() < threads {
        pool.cpus.clear();
    }
    let model = DraftModel::start(draft, &setup.plan, options.variant, pool, open)?;
    Ok(Some(Arc::new(Mutex::new(model))))
}

impl DraftModel {
    /// Loads the model, starts its lane, and measures its steps. `run` is the plan of the run.
    ///
    /// # Errors
    /// Returns an error if memory or threads are unavailable, or the weights cannot be read.
    ///
    /// # Panics
    /// Panics if the plan has more than one lane, or fewer slots than the run.
    fn start(
        setup: DraftModelSetup,
        run: &Plan,
        variant: Variant,
        pool: PoolOptions,
        open: &OpenWeights,
    ) -> Result<DraftModel, WorkerError> {
        let plan = Arc::new(setup.plan);
        let mut mappings = Vec::new();
        for segment in plan.topology.segments() {
            let size_bytes = plan.segment_bytes(segment).max(SEGMENT_BYTES_MIN) as usize;
            mappings.push((segment, Arc::new(Mapping::private(size_bytes)?)));
        }
        let memories = Arc::new(Memories::new(&plan, mappings)?);
        let source = open(&setup.weights, &plan.config).map_err(LoadError::from)?;
        load(&plan, &memories, source.as_ref(), variant, pool.threads, &|_, _| {})?;
        let control = Control::create(plan.lanes().len() as u32, plan.table.words() * 4)?;
        let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
        let joins = plan.config.features.hidden_states.are_joined();
        let hidden = joins.then(|| HiddenStates::new(&plan, run, &setup.weights, open));
        let hidden = hidden.transpose()?;
        let store = hidden.as_ref().map(HiddenStates::store);
        let lane = spawn_lane(&plan, &memories, &control, store, variant, pool)?;
        let slots = table.batch_size();
        let batch_size = usize::from(run.shape.batch_size);
        assert!(slots >= usize::from(run.shape.batches) * batch_size, "a slot for each of the run");
        clear_table(&table, &plan, u32::MAX, &StepCostCurve::NONE);
        let mut model = DraftModel {
            pages: SlotPages::new(&table, plan.shape.kv_pages, plan.shape.page_positions),
            plan,
            control,
            table,
            lane: Some(lane),
            vocab_size: run.config.vocab_size,
            batch_size,
            slots: vec![DraftSlot::default(); slots],
            hidden,
            costs: StepCostCurve::NONE,
            sequences: Vec::with_capacity(slots),
        };
        model.costs = model.measure_costs();
        Ok(model)
    }

    /// Runs the copies that are offered until all have ended.
    ///
    /// # Panics
    /// Panics if the lane has failed.
    fn run_group(&mut self) {
        let drained = self.control.drained().value().wrapping_add(1);
        list_step(&self.table, 0, &mut self.sequences, &mut PromptLookup);
        self.control.release(&SERVING_STAGES, u32::MAX - 1);
        let ended =
            self.control.drained().wait_until(drained, self.control.poison(), GROUP_TIMEOUT);
        if let Err(error) = ended {
            panic!("the draft model has failed: {error}");
        }
    }

    /// Forgets the sequence of a slot.
    fn clear_slot(&mut self, slot: usize) {
        self.slots[slot] = DraftSlot::default();
        self.pages.free(slot);
    }

    /// Returns the slot of a sequence.
    fn slot(&self, batch: usize, slot: usize) -> usize {
        batch * self.batch_size + slot
    }

    /// Frees the caches of sequences of a batch that have ended or left their slots.
    fn free_ended(&mut self, table: &StepTable, batch: usize) {
        for run_slot in 0..self.batch_size {
            let slot = self.slot(batch, run_slot);
            let is_running = slot_state(table, batch, run_slot) == SlotState::Running;
            let field = |field| table.field(batch, run_slot, field);
            let sequence = Some((field(Field::Arrival), field(Field::PromptLen)));
            if self.slots[slot].sequence.is_some()
                && !(is_running && self.slots[slot].sequence == sequence)
            {
                self.clear_slot(slot);
            }
        }
    }

    /// Offers a copy of a sequence for as many drafts as the sequence has places for, within
    /// `max_rows` rows of tokens that the caches lack. Returns the number of these rows. If they
    /// are more, they are computed in this and later groups, before any draft.
    fn offer(
        &mut self,
        table: &StepTable,
        batch: usize,
        sequence: &Sequence,
        max_rows: usize,
    ) -> usize {
        let slot = self.slot(batch, sequence.slot as usize);
        let original = SequenceRef { table, batch, slot: sequence.slot as usize };
        let copy = SequenceRef { table: &self.table, batch: 0, slot };
        let prompt_len = original.field(Field::PromptLen);
        let state = &mut self.slots[slot];
        state.sequence = Some((original.field(Field::Arrival), prompt_len));
        let (all, drafts) = (sequence.num_tokens as usize, sequence.drafts as usize);
        let all = all.saturating_sub(state.skipped);
        let max_context = self.plan.shape.max_context as usize;
        let lacks_states = self.hidden.is_some() && (all == 0 || state.hidden != all);
        if state.is_unsupported || lacks_states || max_rows == 0 || all + drafts > max_context {
            return 0;
        }
        let known = state.computed.min(all - 1);
        let computed = match known > prompt_len as usize && self.hidden.is_none() {
            true => common_prefix_len(original, copy, state.copied.min(known), known),
            false => known,
        };
        // A copy without drafts computes all of its tokens but the last.
        let (tokens, drafts) = match all - computed > max_rows {
            true => ((computed + max_rows + 1).min(all), 0),
            false => (all, drafts),
        };
        if !self.pages.reserve(&self.table, slot, tokens + drafts) {
            return 0;
        }
        let skipped = state.skipped;
        let part = CopiedTokens { skipped, copied: computed, computed, tokens, drafts };
        if !offer_copy(original, copy, part, self.plan.config.vocab_size) {
            state.is_unsupported = true;
            return 0;
        }
        state.copied = tokens;
        state.drafts = Some(drafts);
        tokens - computed
    }
}

impl Drafter for DraftModel {
    fn draft(&mut self, table: &StepTable, batch: usize, sequences: &mut [Sequence]) {
        self.free_ended(table, batch);
        for sequence in sequences.iter_mut().filter(|one| one.drafts > 0) {
            let slot = sequence.slot as usize;
            let is_known = table.field(batch, slot, Field::Acceptance) != 0;
            let generated = table.field(batch, slot, Field::Generated);
            let is_retried = generated.is_multiple_of(RETRY_TOKENS);
            if !is_known || is_retried && sequence.acceptance < INITIAL_ACCEPTANCE {
                sequence.acceptance = INITIAL_ACCEPTANCE;
                set_acceptance(table, batch, slot, DraftAcceptance::new(INITIAL_ACCEPTANCE));
            }
        }
        limit_drafts(sequences, &table.step_budget(), &self.costs);
        let mut free_rows = self.plan.shape.prefill_chunk as usize;
        let mut offered_rows = 0;
        for sequence in sequences.iter().filter(|one| one.drafts > 0) {
            let rows = self.offer(table, batch, sequence, free_rows);
            free_rows -= rows.min(free_rows);
            offered_rows += rows;
        }
        if offered_rows > 0 {
            self.run_group();
        }
        for sequence in sequences.iter_mut() {
            let slot = self.slot(batch, sequence.slot as usize);
            let Some(drafts) = self.slots[slot].drafts.take() else {
                sequence.drafts = 0;
                continue;
            };
            let original = SequenceRef { table, batch, slot: sequence.slot as usize };
            let copy = SequenceRef { table: &self.table, batch: 0, slot };
            let (drafts, computed) = take_drafts(original, copy, drafts, self.vocab_size);
            let state = &mut self.slots[slot];
            // Rows of drafts are computed again, from hidden states of the run.
            let max_computed = if self.hidden.is_some() { state.copied } else { usize::MAX };
            state.computed = computed.min(max_computed);
            sequence.drafts = drafts as u32;
        }
    }

    fn take_hidden(&mut self, table: &StepTable, batch: usize, hidden: HiddenRows<'_>) {
        self.store_hidden(table, batch, hidden);
    }
}

impl Drop for DraftModel {
    fn drop(&mut self) {
        self.control.release(&[], 0);
        // A lane that has failed was reported when a group waited for it.
        let _ = self.lane.take().map(JoinHandle::join);
    }
}

/// Starts the thread of the plan's only lane.
fn spawn_lane(
    plan: &Arc<Plan>,
    memories: &Arc<Memories>,
    control: &Control,
    hidden: Option<&SharedHiddenStore>,
    variant: Variant,
    pool: PoolOptions,
) -> Result<JoinHandle<Result<(), LaneError>>, WorkerError> {
    let lanes = plan.lanes();
    let [lane] = lanes[..] else { panic!("a draft model of {} lanes", lanes.len()) };
    let options = LaneOptions {
        variant,
        pool,
        link_bytes_per_s: None,
        wait_timeout: GROUP_TIMEOUT,
        grammars: None,
        routes_randomly: false,
        select_text: Vec::new(),
        // Nothing is drafted for the drafts themselves.
        drafter: hidden.map(|store| -> SharedDrafter {
            Arc::new(Mutex::new(PredictedStates(Arc::clone(store))))
        }),
    };
    let shared = SharedState { skew: None, hidden };
    // SAFETY: the coordinator sends plans that the validator has accepted; this is the plan's only
    // lane, built once, and the weights are in place.
    let executor = unsafe { lane_executor(lane, plan, memories, control, &options, shared) }?;
    let setup = LaneSetup {
        lane,
        worker: plan.topology.lane(lane).worker,
        plan: Arc::clone(plan),
        control: control.clone(),
        trace: None,
        stall_bounds: StallBounds { run: GROUP_TIMEOUT, start: None },
        link_bytes_per_s: None,
        checkpoint: None,
    };
    let mut runner = LaneRunner::new(setup, executor);
    let control = control.clone();
    let body = move || {
        let ended = runner.run();
        if ended.is_err() {
            control.stop(lane.index() as u32, 1);
        }
        ended
    };
    std::thread::Builder::new().name("draft".to_owned()).spawn(body).map_err(WorkerError::Thread)
}
