//! Iterations of a serving run whose sequences are owned by the device or by the host.
//!
//! [`schedule::hybrid::next`] decides, given queues that are read from the slots of the step table.
//! This module applies the decision to the slots: the owners of the sequences, the extents that
//! they have on the device, and the lists of the following programs.
//!
//! The decision covers whole prompts. A prompt that is longer than a step, or the logits of whose
//! own tokens are requested, is computed in pieces in addition to what was decided, and is owned by
//! the host.

use program::ir::ProgramId;
use program::lagging::stream_behind;
use program::step_table::{Field, Home, List, SlotState};
use schedule::hybrid::{Iteration, Lags, Place, Queued, Queues, Shape, next};
use schedule::{Costs, Piece, Step};

use super::serving::{draws, has_ended, sequence, set_state, state};
use super::table::{Item, StepTable};

/// The only batch of such a run.
const BATCH: usize = 0;

/// State of the decision, allocated once.
#[derive(Debug)]
pub struct Iterations {
    waiting: Vec<Queued>,
    device: Vec<Queued>,
    host: Vec<Queued>,
    places: Vec<Place>,
    /// Device extents that are in use.
    seats: Vec<bool>,
    /// Slot of the first prompt that is computed in pieces.
    in_pieces: Option<usize>,
}

impl Iterations {
    /// Allocates for the slots of a table; nothing if sequences have no owners.
    pub fn new(table_slots: usize, device_slots: usize) -> Iterations {
        let slots = if device_slots > 0 { table_slots } else { 0 };
        let queue = || Vec::with_capacity(slots);
        Iterations {
            waiting: queue(),
            device: queue(),
            host: queue(),
            places: vec![Place::default(); slots],
            seats: vec![false; device_slots],
            in_pieces: None,
        }
    }

    /// Takes offered sequences, returns ended ones, decides the next iteration and lists it.
    pub fn list(&mut self, table: &StepTable) {
        get_further(table);
        self.take(table);
        for program in table.programs_of_owners() {
            let streams = 0..table.program(program).streams;
            streams.for_each(|stream| table.set_items(BATCH, List { program, stream }, 0));
        }
        let decided = self.waiting.len() + self.device.len() + self.host.len();
        if decided == 0 && self.in_pieces.is_none() {
            table.set_following([None, None]);
            return;
        }
        let mut deciding = table.deciding();
        let in_pieces = self.in_pieces.filter(|_| !self.must_get_further());
        let piece = in_pieces.and_then(|slot| piece(table, slot, decided as u32));
        if piece.is_some() || !table.can_lag() || deciding.limits.lags != Lags::Apart {
            deciding.limits.lags = Lags::Never;
        }
        deciding.limits.rows -= piece.map_or(0, |piece| piece.rows);
        let queues = Queues {
            waiting: &self.waiting,
            device: &self.device,
            host: &self.host,
            is_late: false,
        };
        let places = &mut self.places;
        let iteration = next(deciding.policy, &queues, &deciding.limits, &deciding.costs, places);
        self.apply(table, &iteration, piece);
    }

    /// Returns true if a deferred row has waited for a piece: the two take turns.
    fn must_get_further(&self) -> bool {
        self.host.iter().any(|one| one.layer > 0 && one.waited > 0)
    }

    /// Reads the queues from the slots.
    fn take(&mut self, table: &StepTable) {
        self.waiting.clear();
        self.device.clear();
        self.host.clear();
        self.in_pieces = None;
        let age = age(table);
        for slot in 0..table.batch_size() {
            match state(table, BATCH, slot) {
                SlotState::Offered => {
                    set_home(table, slot, Home::Nowhere);
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
            let queue = match table.home(BATCH, slot) {
                Home::Nowhere => &mut self.waiting,
                Home::Device => &mut self.device,
                Home::Host => &mut self.host,
            };
            let (tokens, waited) = (known(table, slot), get(table, slot, Field::Waited));
            let layer = get(table, slot, Field::Layer);
            queue.push(Queued { id: slot as u32, tokens, layer, waited });
        }
        self.waiting.sort_unstable_by_key(|one| std::cmp::Reverse(age(one.id as usize)));
        for queue in [&mut self.device, &mut self.host] {
            queue.sort_unstable_by_key(|one| get(table, one.id as usize, Field::Turn));
        }
    }

    /// Applies the decision to the slots.
    fn apply(&mut self, table: &StepTable, iteration: &Iteration, piece: Option<Piece>) {
        let Iterations { waiting, device, host, places, seats, .. } = self;
        let places = &places[..];
        let queues = Queues { waiting, device, host, is_late: false };
        let stays = &queues.device[..iteration.decodes];
        seats.fill(false);
        for one in stays {
            seats[get(table, one.id as usize, Field::Seat) as usize] = true;
        }
        let program = match iteration.shape {
            // The host attends for pieces other than the first.
            Shape::Gpu if piece.is_none() => ProgramId::STEP,
            Shape::Gpu | Shape::Pipelined => ProgramId::PIPELINED,
            Shape::Async => ProgramId::ASYNC,
        };
        table.count(program);
        let mut lists = Listing { table, program, turns: [0, 0], moves: None };
        stays.iter().for_each(|one| lists.compute_whole(one, Home::Device, 0));
        let evicted = &queues.device[iteration.decodes..][..iteration.evicted];
        evicted.iter().for_each(|one| give_up(table, one));
        let moves_out = iteration.with_host(&queues).take(iteration.moves_out);
        moves_out.for_each(|one| lists.list_move(one, ProgramId::MOVE_OUT));
        let with_host = || iteration.with_host(&queues).zip(places);
        for (one, _) in with_host().filter(|(_, place)| **place == Place::MovesIn) {
            take_seat(table, one, seats);
            lists.list_move(one, ProgramId::MOVE_IN);
            lists.compute_whole(one, Home::Device, 0);
        }
        let prefills = iteration.prefills(&queues).split_at(iteration.device_prefills);
        for one in prefills.0 {
            take_seat(table, one, seats);
            lists.compute_whole(one, Home::Device, 0);
        }
        for (one, place) in with_host() {
            match place {
                Place::MovesIn => {}
                Place::Evicted => give_up(table, one),
                Place::Waits => lists.keep_waiting(one),
                Place::First => lists.compute_whole(one, Home::Host, 0),
                Place::Second => lists.compute_whole(one, Home::Host, 1),
                Place::Lagging => lists.get_further(one),
            }
        }
        prefills.1.iter().for_each(|one| lists.compute_whole(one, Home::Host, 0));
        piece.iter().for_each(|piece| lists.compute_piece(piece));
        table.set_following(match lists.moves {
            Some(moves) => [Some(moves), Some(program)],
            None => [Some(program), None],
        });
    }
}

/// Lists of an iteration while they are written.
struct Listing<'a> {
    table: &'a StepTable,
    program: ProgramId,
    /// Next place in the device's queue and in the host's.
    turns: [u32; 2],
    moves: Option<ProgramId>,
}

impl Listing<'_> {
    /// Lists all uncomputed rows of a sequence in a stream.
    fn compute_whole(&mut self, one: &Queued, home: Home, stream: u16) {
        self.compute(one, home, stream, draws(self.table, BATCH, one.id as usize));
    }

    /// Lists the uncomputed rows of a sequence in a stream. The last one is sampled if `samples`.
    fn compute(&mut self, one: &Queued, home: Home, stream: u16, samples: bool) {
        let (table, slot) = (self.table, one.id as usize);
        self.queue(slot, home);
        set(table, slot, Field::Waited, 0);
        let first = get(table, slot, Field::Computed) as usize;
        let item = Item {
            slot,
            first,
            rows: one.tokens as usize - first,
            shared_row: None,
            samples,
            logits_rows: samples.into(),
        };
        table.push_item(BATCH, List { program: self.program, stream }, item);
    }

    /// Lists the newest token of a sequence of the host for its next layer.
    fn get_further(&mut self, one: &Queued) {
        let stream = stream_behind(one.layer as u16);
        let is_last = stream + 1 == self.table.program(self.program).streams;
        let samples = is_last && draws(self.table, BATCH, one.id as usize);
        self.compute(one, Home::Host, stream, samples);
    }

    /// Lists a piece of a prompt.
    fn compute_piece(&mut self, piece: &Piece) {
        self.queue(piece.slot as usize, Home::Host);
        let item = Item {
            slot: piece.slot as usize,
            first: piece.first as usize,
            rows: piece.rows as usize,
            shared_row: None,
            samples: piece.samples,
            logits_rows: piece.logits_rows as usize,
        };
        self.table.push_item(BATCH, List { program: self.program, stream: 0 }, item);
    }

    /// Keeps a sequence of the host in its queue without computing anything of it.
    fn keep_waiting(&mut self, one: &Queued) {
        self.queue(one.id as usize, Home::Host);
        set(self.table, one.id as usize, Field::Waited, one.waited.saturating_add(1));
    }

    fn queue(&mut self, slot: usize, home: Home) {
        set_home(self.table, slot, home);
        let turn = &mut self.turns[usize::from(home == Home::Host)];
        set(self.table, slot, Field::Turn, *turn);
        *turn += 1;
    }

    /// Lists a move of all cached positions of a sequence.
    fn list_move(&mut self, one: &Queued, program: ProgramId) {
        let slot = one.id as usize;
        let first = get(self.table, slot, Field::Computed) as usize;
        let item = Item { slot, first, rows: 0, shared_row: None, samples: false, logits_rows: 0 };
        self.table.push_item(BATCH, List { program, stream: 0 }, item);
        self.table.count(program);
        self.moves = Some(program);
    }
}

/// Advances deferred rows past the layer that the step which listed them has computed, or to the
/// next token after the last layer.
fn get_further(table: &StepTable) {
    if !table.can_lag() {
        return;
    }
    let (program, last) = (ProgramId::ASYNC, table.program(ProgramId::ASYNC).streams - 1);
    for stream in stream_behind(0)..=last {
        let list = List { program, stream };
        for index in 0..table.items(BATCH, list) {
            let layer = if stream == last { 0 } else { u32::from(stream - stream_behind(0)) + 1 };
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
    let (known, computed) = (known(table, slot), get(table, slot, Field::Computed));
    if computed > 0 && known > computed + 1 {
        return true;
    }
    let says = get(table, slot, Field::PromptLogprobs) > 0;
    says && computed < get(table, slot, Field::PromptLen) || known - computed > whole_max(table)
}

/// Returns the next rows of a prompt, with the logits of at most as many of its tokens as `others`
/// other sequences leave capacity for.
fn piece(table: &StepTable, slot: usize, others: u32) -> Option<Piece> {
    let logits_rows = table.program(ProgramId::STEP).logits_rows.saturating_sub(others);
    let costs = Costs::NONE;
    let step = Step { rows: whole_max(table), logits_rows, aim_ns: u64::MAX, costs };
    let mut found = None;
    schedule::next(&mut [sequence(table, BATCH, slot)], &step, |piece| found = Some(piece));
    found
}

/// Returns a function that computes how much older a slot's sequence is than the newest one.
/// Arrival numbers wrap around, but those of sequences that run together are close to each other.
fn age(table: &StepTable) -> impl Fn(usize) -> u32 + '_ {
    let later = |a: u32, b: u32| if (b.wrapping_sub(a) as i32) > 0 { b } else { a };
    let runs = |slot: &usize| state(table, BATCH, *slot) != SlotState::Free;
    let all = (0..table.batch_size()).filter(runs).map(|slot| get(table, slot, Field::Arrival));
    let newest = all.reduce(later).unwrap_or(0);
    move |slot| newest.wrapping_sub(get(table, slot, Field::Arrival))
}

/// Evicts a sequence: it returns its caches and becomes a prompt of all its tokens.
fn give_up(table: &StepTable, one: &Queued) {
    set_home(table, one.id as usize, Home::Nowhere);
    set(table, one.id as usize, Field::Computed, 0);
    set(table, one.id as usize, Field::Layer, 0);
    set(table, one.id as usize, Field::Waited, one.waited.saturating_add(1));
}

/// Assigns an extent on the device to a sequence.
fn take_seat(table: &StepTable, one: &Queued, seats: &mut [bool]) {
    let free = seats.iter().position(|is_taken| !is_taken);
    let free = free.expect("as many pages as extents, and a page for each sequence");
    seats[free] = true;
    set(table, one.id as usize, Field::Seat, free as u32);
}

/// Returns the number of tokens to compute, which are all known ones. The last one is excluded if
/// no token is drawn from it.
fn known(table: &StepTable, slot: usize) -> u32 {
    let all = get(table, slot, Field::PromptLen) + get(table, slot, Field::Generated);
    all - u32::from(!draws(table, BATCH, slot))
}

fn get(table: &StepTable, slot: usize, field: Field) -> u32 {
    table.field(BATCH, slot, field)
}

fn set(table: &StepTable, slot: usize, field: Field, value: u32) {
    table.set_field(BATCH, slot, field, value);
}

fn set_home(table: &StepTable, slot: usize, home: Home) {
    set(table, slot, Field::Home, home as u32);
}
