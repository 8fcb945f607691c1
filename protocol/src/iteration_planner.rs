//! Iterations of a serving run whose sequences are owned by the device or by the host.
//!
//! [`scheduler::hybrid::next`] decides, given queues that are read from the slots of the step
//! table. This module applies the decision to the slots: the owners of the sequences, the extents
//! that they have on the device, and the lists of the following programs.
//!
//! The decision covers whole prompts. A prompt that is longer than a step, or the logits of whose
//! own tokens are requested, is computed in pieces in addition to what was decided, and is owned by
//! the host.

use program::deferred_rows::stream_after;
use program::ir::ProgramId;
use program::step_table::{Field, KvTier, List, SlotState};
use scheduler::hybrid::{
    DeferredRows, HostDecision, Iteration, IterationShape, QueuedSequence, Queues, next_iteration,
};
use scheduler::{RowSpan, StepCostCurve, StepLimits};

use super::serving::{
    draws_tokens, has_ended, needs_prompt_logits, sequence, set_state, slot_state,
};
use super::table::{StepTable, WorkItem};

/// The only batch of such a run.
const BATCH: usize = 0;

/// State of the decision, allocated once.
#[derive(Debug)]
pub struct IterationPlanner {
    waiting: Vec<QueuedSequence>,
    device: Vec<QueuedSequence>,
    host: Vec<QueuedSequence>,
    places: Vec<HostDecision>,
    /// Device extents that are in use.
    device_extents: Vec<bool>,
    /// Slot of the first prompt that is computed in pieces.
    in_pieces: Option<usize>,
}

impl IterationPlanner {
    /// Allocates for the slots of a table; nothing if sequences have no owners.
    pub fn new(table_slots: usize, device_slots: usize) -> IterationPlanner {
        let slots = if device_slots > 0 { table_slots } else { 0 };
        let queue = || Vec::with_capacity(slots);
        IterationPlanner {
            waiting: queue(),
            device: queue(),
            host: queue(),
            places: vec![HostDecision::default(); slots],
            device_extents: vec![false; device_slots],
            in_pieces: None,
        }
    }

    /// Takes offered sequences, returns ended ones, decides the next iteration and lists it.
    pub fn list(&mut self, table: &StepTable) {
        advance_deferred(table);
        self.read_queues(table);
        for program in table.programs_of_owners() {
            let streams = 0..table.program(program).streams;
            streams.for_each(|stream| table.set_item_count(BATCH, List { program, stream }, 0));
        }
        let decided = self.waiting.len() + self.device.len() + self.host.len();
        if decided == 0 && self.in_pieces.is_none() {
            table.set_next_programs([None, None]);
            return;
        }
        let mut policy = table.hybrid_policy();
        let in_pieces = self.in_pieces.filter(|_| !self.must_advance_deferred());
        let piece = in_pieces.and_then(|slot| piece(table, slot, decided as u32));
        if piece.is_some()
            || !table.can_defer_rows()
            || policy.limits.deferred_rows != DeferredRows::AnyLayer
        {
            policy.limits.deferred_rows = DeferredRows::Never;
        }
        policy.limits.rows -= piece.map_or(0, |piece| piece.rows);
        let queues = Queues {
            waiting: &self.waiting,
            device: &self.device,
            host: &self.host,
            is_late: false,
        };
        let places = &mut self.places;
        let iteration =
            next_iteration(policy.policy, &queues, &policy.limits, &policy.costs, places);
        self.apply(table, &iteration, piece);
    }

    /// Returns true if a deferred row has waited for a piece: the two take turns.
    fn must_advance_deferred(&self) -> bool {
        self.host.iter().any(|one| one.layer > 0 && one.idle_iterations > 0)
    }

    /// Reads the queues from the slots.
    fn read_queues(&mut self, table: &StepTable) {
        self.waiting.clear();
        self.device.clear();
        self.host.clear();
        self.in_pieces = None;
        let age = age(table);
        for slot in 0..table.batch_size() {
            match slot_state(table, BATCH, slot) {
                SlotState::Offered => {
                    set_tier(table, slot, KvTier::Nowhere);
                    set(table, slot, Field::Waited, 0);
                    set(table, slot, Field::Layer, 0);
                    set_state(table, BATCH, slot, SlotState::Running);
                }
                SlotState::Running => {}
                SlotState::Free | SlotState::Ended => continue,
            }
            if has_ended(table, BATCH, slot) {
                set_state(table, BATCH, slot, SlotState::Ended);
                continue;
            }
            if is_in_pieces(table, slot) {
                let is_older = self.in_pieces.is_none_or(|other| age(other) < age(slot));
                self.in_pieces = if is_older { Some(slot) } else { self.in_pieces };
                continue;
            }
            let queue = match table.tier(BATCH, slot) {
                KvTier::Nowhere => &mut self.waiting,
                KvTier::Device => &mut self.device,
                KvTier::Host => &mut self.host,
            };
            let (tokens, idle_iterations) =
                (known_tokens(table, slot), get(table, slot, Field::Waited));
            let layer = get(table, slot, Field::Layer);
            queue.push(QueuedSequence { id: slot as u32, tokens, layer, idle_iterations });
        }
        self.waiting.sort_unstable_by_key(|one| std::cmp::Reverse(age(one.id as usize)));
        for queue in [&mut self.device, &mut self.host] {
            queue.sort_unstable_by_key(|one| get(table, one.id as usize, Field::Turn));
        }
    }

    /// Applies the decision to the slots.
    fn apply(&mut self, table: &StepTable, iteration: &Iteration, piece: Option<RowSpan>) {
        let IterationPlanner { waiting, device, host, places, device_extents, .. } = self;
        let places = &places[..];
        let queues = Queues { waiting, device, host, is_late: false };
        let stays = &queues.device[..iteration.decodes];
        device_extents.fill(false);
        for one in stays {
            device_extents[get(table, one.id as usize, Field::Allocation) as usize] = true;
        }
        let program = match iteration.shape {
            // The host attends for pieces other than the first.
            IterationShape::Gpu if piece.is_none() => ProgramId::STEP,
            IterationShape::Gpu | IterationShape::Pipelined => ProgramId::PIPELINED,
            IterationShape::Async => ProgramId::ASYNC,
        };
        table.count_program(program);
        let mut lists = IterationLists { table, program, turns: [0, 0], moves: None };
        stays.iter().for_each(|queued| lists.compute_whole(queued, KvTier::Device, 0));
        let evicted = &queues.device[iteration.decodes..][..iteration.evicted];
        evicted.iter().for_each(|queued| evict(table, queued));
        let moves_out = iteration.with_host(&queues).take(iteration.moves_out);
        moves_out.for_each(|queued| lists.list_move(queued, ProgramId::MOVE_OUT));
        let with_host = || iteration.with_host(&queues).zip(places);
        for (one, _) in with_host().filter(|(_, place)| **place == HostDecision::MovesIn) {
            assign_extent(table, one, device_extents);
            lists.list_move(one, ProgramId::MOVE_IN);
            lists.compute_whole(one, KvTier::Device, 0);
        }
        let prefills = iteration.prefills(&queues).split_at(iteration.device_prefills);
        for one in prefills.0 {
            assign_extent(table, one, device_extents);
            lists.compute_whole(one, KvTier::Device, 0);
        }
        for (one, place) in with_host() {
            match place {
                HostDecision::MovesIn => {}
                HostDecision::Evicted => evict(table, one),
                HostDecision::Waits => lists.keep_waiting(one),
                HostDecision::FirstBatch => lists.compute_whole(one, KvTier::Host, 0),
                HostDecision::SecondBatch => lists.compute_whole(one, KvTier::Host, 1),
                HostDecision::Deferred => lists.list_deferred(one),
            }
        }
        prefills.1.iter().for_each(|queued| lists.compute_whole(queued, KvTier::Host, 0));
        piece.iter().for_each(|piece| lists.compute_piece(piece));
        table.set_next_programs(match lists.moves {
            Some(moves) => [Some(moves), Some(program)],
            None => [Some(program), None],
        });
    }
}

/// Lists of an iteration while they are written.
struct IterationLists<'a> {
    table: &'a StepTable,
    program: ProgramId,
    /// Next place in the device's queue and in the host's.
    turns: [u32; 2],
    moves: Option<ProgramId>,
}

impl IterationLists<'_> {
    /// Lists all uncomputed rows of a sequence in a stream.
    fn compute_whole(&mut self, queued: &QueuedSequence, tier: KvTier, stream: u16) {
        self.compute(queued, tier, stream, draws_tokens(self.table, BATCH, queued.id as usize));
    }

    /// Lists the uncomputed rows of a sequence in a stream. The last one is sampled if `samples`.
    fn compute(&mut self, queued: &QueuedSequence, tier: KvTier, stream: u16, samples: bool) {
        let (table, slot) = (self.table, queued.id as usize);
        self.queue(slot, tier);
        set(table, slot, Field::Waited, 0);
        let first = get(table, slot, Field::Computed) as usize;
        let item = WorkItem {
            slot,
            first,
            rows: queued.tokens as usize - first,
            shared_row: None,
            samples,
            logits_rows: samples.into(),
            drafts: 0,
        };
        table.push_item(BATCH, List { program: self.program, stream }, item);
    }

    /// Lists the newest token of a sequence of the host for its next layer.
    fn list_deferred(&mut self, queued: &QueuedSequence) {
        let stream = stream_after(queued.layer as u16);
        let is_last = stream + 1 == self.table.program(self.program).streams;
        let samples = is_last && draws_tokens(self.table, BATCH, queued.id as usize);
        self.compute(queued, KvTier::Host, stream, samples);
    }

    /// Lists a piece of a prompt.
    fn compute_piece(&mut self, piece: &RowSpan) {
        self.queue(piece.slot as usize, KvTier::Host);
        let item = WorkItem {
            slot: piece.slot as usize,
            first: piece.first as usize,
            rows: piece.rows as usize,
            shared_row: None,
            samples: piece.is_sampled,
            logits_rows: piece.logits_rows as usize,
            drafts: 0,
        };
        self.table.push_item(BATCH, List { program: self.program, stream: 0 }, item);
    }

    /// Keeps a sequence of the host in its queue without computing anything of it.
    fn keep_waiting(&mut self, queued: &QueuedSequence) {
        self.queue(queued.id as usize, KvTier::Host);
        set(
            self.table,
            queued.id as usize,
            Field::Waited,
            queued.idle_iterations.saturating_add(1),
        );
    }

    fn queue(&mut self, slot: usize, tier: KvTier) {
        set_tier(self.table, slot, tier);
        let turn = &mut self.turns[usize::from(tier == KvTier::Host)];
        set(self.table, slot, Field::Turn, *turn);
        *turn += 1;
    }

    /// Lists a move of all cached positions of a sequence.
    fn list_move(&mut self, queued: &QueuedSequence, program: ProgramId) {
        let slot = queued.id as usize;
        let first = get(self.table, slot, Field::Computed) as usize;
        let item = WorkItem {
            slot,
            first,
            rows: 0,
            shared_row: None,
            samples: false,
            logits_rows: 0,
            drafts: 0,
        };
        self.table.push_item(BATCH, List { program, stream: 0 }, item);
        self.table.count_program(program);
        self.moves = Some(program);
    }
}

/// Advances deferred rows past the layer that the step which listed them has computed, or to the
/// next token after the last layer.
fn advance_deferred(table: &StepTable) {
    if !table.can_defer_rows() {
        return;
    }
    let (program, last) = (ProgramId::ASYNC, table.program(ProgramId::ASYNC).streams - 1);
    for stream in stream_after(0)..=last {
        let list = List { program, stream };
        for index in 0..table.item_count(BATCH, list) {
            let layer = if stream == last { 0 } else { u32::from(stream - stream_after(0)) + 1 };
            set(table, table.item(BATCH, list, index).slot, Field::Layer, layer);
        }
    }
}

/// Returns the maximum number of rows of a prompt that is computed whole, which leaves capacity for
/// the newest tokens of all other sequences.
fn whole_max(table: &StepTable) -> u32 {
    table.program(ProgramId::STEP).stream_rows.saturating_sub(table.batch_size() as u32).max(1)
}

/// Returns true if a sequence is computed in pieces rather than whole.
fn is_in_pieces(table: &StepTable, slot: usize) -> bool {
    let (known, computed) = (known_tokens(table, slot), get(table, slot, Field::Computed));
    if computed > 0 && known > computed + 1 {
        return true;
    }
    needs_prompt_logits(table, BATCH, slot) && computed < get(table, slot, Field::PromptLen)
        || known - computed > whole_max(table)
}

/// Returns the next rows of a prompt, with the logits of at most as many of its tokens as
/// `other_rows` other sequences leave capacity for.
fn piece(table: &StepTable, slot: usize, other_rows: u32) -> Option<RowSpan> {
    let logits_rows = table.program(ProgramId::STEP).logits_rows.saturating_sub(other_rows);
    let costs = StepCostCurve::NONE;
    let step = StepLimits { rows: whole_max(table), logits_rows, target_ns: u64::MAX, costs };
    let mut found = None;
    scheduler::next_step(&mut [sequence(table, BATCH, slot)], &step, |piece| found = Some(piece));
    found
}

/// Returns a function that computes how much older a slot's sequence is than the newest one.
/// Arrival numbers wrap around, but those of sequences that run together are close to each other.
fn age(table: &StepTable) -> impl Fn(usize) -> u32 + '_ {
    let later = |a: u32, b: u32| if (b.wrapping_sub(a) as i32) > 0 { b } else { a };
    let runs = |slot: &usize| slot_state(table, BATCH, *slot) != SlotState::Free;
    let all = (0..table.batch_size()).filter(runs).map(|slot| get(table, slot, Field::Arrival));
    let newest = all.reduce(later).unwrap_or(0);
    move |slot| newest.wrapping_sub(get(table, slot, Field::Arrival))
}

/// Evicts a sequence: it returns its caches and becomes a prompt of all its tokens.
fn evict(table: &StepTable, queued: &QueuedSequence) {
    set_tier(table, queued.id as usize, KvTier::Nowhere);
    set(table, queued.id as usize, Field::Computed, 0);
    set(table, queued.id as usize, Field::Layer, 0);
    set(table, queued.id as usize, Field::Waited, queued.idle_iterations.saturating_add(1));
}

/// Assigns an extent on the device to a sequence.
fn assign_extent(table: &StepTable, queued: &QueuedSequence, extents: &mut [bool]) {
    let free = extents.iter().position(|is_taken| !is_taken);
    let free = free.expect("as many pages as extents, and a page for each sequence");
    extents[free] = true;
    set(table, queued.id as usize, Field::Allocation, free as u32);
}

/// Returns the number of tokens to compute, which are all known ones. The last one is excluded if
/// no token is drawn from it.
fn known_tokens(table: &StepTable, slot: usize) -> u32 {
    let all = get(table, slot, Field::PromptLen) + get(table, slot, Field::Generated);
    all - u32::from(!draws_tokens(table, BATCH, slot))
}

fn get(table: &StepTable, slot: usize, field: Field) -> u32 {
    table.field(BATCH, slot, field)
}

fn set(table: &StepTable, slot: usize, field: Field, value: u32) {
    table.set_field(BATCH, slot, field, value);
}

fn set_tier(table: &StepTable, slot: usize, tier: KvTier) {
    set(table, slot, Field::Tier, tier as u32);
}
