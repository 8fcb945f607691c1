//! KV caches of the sequences in slots: pages that sequences share and release, or one extent per
//! slot.

use std::hash::{DefaultHasher, Hash, Hasher};

use model::rope::SequenceLength;
use program::ir::Instruction;
use program::page_runs::PageRuns;
use program::plan::Plan;
use program::step_table::Field;
use schedule::{PART_MIN, Pages};
use workers::shared::group::Request;
use workers::shared::table::StepTable;

/// Inverse of a share: a sequence waits for another one only if that computes at least this share
/// of what the first one would otherwise have to compute.
const PART_SHARE: usize = 4;

/// Caches of all slots.
#[derive(Debug)]
pub(super) struct Caches {
    /// Pages of each batch; empty if each slot has an extent.
    batches: Vec<Pages>,
    /// Number of pages of a sequence as long as the context.
    pages_max: u32,
    max_context: u32,
    /// True if sequences with a common prefix can share pages. A ring of positions belongs to a
    /// single sequence, and so does a state.
    shares: bool,
    /// True if the worker that owns the caches can copy a part of a page.
    copies: bool,
}

/// Caches of a sequence in a slot.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pages: Vec<u32>,
    /// Number of pages whose contents were recorded as complete.
    filled: usize,
    /// Number of positions after these pages whose contents were recorded.
    filled_part: usize,
    /// Identity of everything that the contents depend on in addition to the tokens.
    kind: u64,
    /// Number of positions that were computed already.
    pub(super) computed: u32,
    /// Number of positions for which caches are allocated.
    pub(super) room: u32,
}

/// A sequence in a slot whose prompt is being computed.
#[derive(Debug)]
pub(super) struct Computing<'a> {
    pub(super) seat: &'a Seat,
    /// Tokens of its prompt; empty if the prompt is complete, or if the sequence is leaving its
    /// slot.
    pub(super) tokens: &'a [u32],
}

impl Seat {
    /// Returns the page at `index` among those of the sequence.
    pub(super) fn page(&self, index: usize) -> u32 {
        self.pages[index]
    }

    /// Returns the identity of everything that the contents depend on in addition to the tokens.
    pub(super) fn kind(&self) -> u64 {
        self.kind
    }
}

/// Positions to be copied into a sequence's page from another page, which stays in use until then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) positions: u32,
}

impl Caches {
    pub(super) fn new(plan: &Plan) -> Caches {
        let shape = plan.shape;
        let pages = match shape.page_positions {
            0 => Vec::new(),
            positions => {
                vec![Pages::new(shape.kv_pages, positions); usize::from(shape.batches)]
            }
        };
        Caches {
            batches: pages,
            pages_max: plan.table.pages,
            max_context: shape.max_context,
            shares: plan.table.windows.is_empty() && !plan.config.layers.have_states(),
            copies: shape.page_positions > PART_MIN
                && (0..shape.batches).all(|batch| PageRuns::of(plan, batch).is_some())
                && appends_before_sampling(plan),
        }
    }

    /// Returns the number of positions for which there are caches, and the number of those in use.
    /// With extents, the latter is `known`, the number of positions of all sequences in the `slots`
    /// slots.
    pub(super) fn positions(&self, slots: u64, known: u64) -> (u64, u64) {
        if self.batches.is_empty() {
            return (slots * u64::from(self.max_context), known);
        }
        let of = |count: &dyn Fn(&Pages) -> u32| -> u64 {
            let positions = |pages: &Pages| u64::from(count(pages)) * u64::from(pages.positions());
            self.batches.iter().map(positions).sum()
        };
        (of(&|pages| pages.used() + pages.available()), of(&Pages::used))
    }

    /// Returns true if another sequence of the batch is about to compute positions that a sequence
    /// of this kind could then share. `known` are the tokens of this sequence whose positions may
    /// be shared, all except the last.
    pub(super) fn is_computing(
        &self,
        (batch, kind): (usize, u64),
        known: &[u32],
        other: &Computing<'_>,
    ) -> bool {
        let Some(pages) = self.batches.get(batch).filter(|_| self.shares) else { return false };
        if kind != other.seat.kind {
            return false;
        }
        let filled = other.seat.filled * pages.positions() as usize;
        let upto = filled + pages.positions() as usize;
        let is_page = || other.tokens.get(..upto).is_some_and(|tokens| *tokens == known[..upto]);
        if upto < known.len() && is_page() {
            return true;
        }
        // A part of the page that the other sequence is filling: the last page of its prompt, or
        // the one in which the prompts diverge.
        if !self.copies || known.len() < filled {
            return false;
        }
        let other = other.tokens.get(..upto).unwrap_or(other.tokens);
        if other.len() < filled || other[..filled] != known[..filled] {
            return false;
        }
        let rest = &known[..known.len().saturating_sub(1)];
        let rest = rest.get(filled..).unwrap_or_default();
        let part = other[filled..].iter().zip(rest).take_while(|(a, b)| a == b).count();
        // A sequence that waits for few positions loses more time than it saves.
        if part < PART_MIN as usize {
            return false;
        }
        let found = pages.known(kind, known) as usize;
        found < filled + part && (filled + part - found) * PART_SHARE >= known.len() - found
    }

    /// Allocates caches for a sequence of this kind that begins in a batch in which `growing` other
    /// sequences will need more pages; one page is left for each of them. Returns `None` if there
    /// is not enough space now. `known` is as in [`Caches::is_computing`]; the sequence has `count`
    /// tokens in total.
    pub(super) fn seat(
        &mut self,
        (batch, growing): (usize, usize),
        kind: u64,
        known: &[u32],
        count: usize,
    ) -> Option<Seat> {
        let Some(pages) = self.batches.get_mut(batch) else {
            return Some(Seat { room: self.max_context, ..Seat::default() });
        };
        let shared = if self.shares { pages.share(kind, known) } else { Vec::new() };
        let needed = (count as u32 + 1).div_ceil(pages.positions()).min(self.pages_max);
        let more = needed.saturating_sub(shared.len() as u32);
        let mut seat = Seat {
            filled: shared.len(),
            filled_part: 0,
            computed: shared.len() as u32 * pages.positions(),
            pages: shared,
            kind,
            room: 0,
        };
        if pages.available() < more + growing as u32 {
            self.release(batch, seat);
            return None;
        }
        seat.pages.extend((0..more).filter_map(|_| pages.take()));
        seat.room = self.room(batch, &seat);
        Some(seat)
    }

    /// Writes a sequence's pages into its slot, before the sequence is offered.
    pub(super) fn write(&self, table: &StepTable, (batch, slot): (usize, usize), seat: &Seat) {
        for (index, page) in seat.pages.iter().enumerate() {
            table.set_page(batch, slot, index, *page);
        }
    }

    /// Extends the caches of a running sequence to `needed` positions. Returns false if no pages
    /// are available.
    pub(super) fn grow(
        &mut self,
        table: &StepTable,
        (batch, slot): (usize, usize),
        seat: &mut Seat,
        needed: u32,
    ) -> bool {
        let needed = needed.min(self.max_context);
        while seat.room < needed {
            let Some(page) = self.batches.get_mut(batch).and_then(Pages::take) else {
                return false;
            };
            table.set_page(batch, slot, seat.pages.len(), page);
            seat.pages.push(page);
            seat.room = self.room(batch, seat);
            // SYNC POINT: room, released here once the page is written.
            table.set_field(batch, slot, Field::Room, seat.room);
        }
        true
    }

    /// Records the contents of the pages that a sequence has filled, given that `computed`
    /// positions of its tokens are computed. The tokens are only listed if there is something to
    /// record. Parts of a page are recorded for its prompt, which has `prompt` tokens, and when the
    /// sequence `ends`.
    pub(super) fn fill(
        &mut self,
        batch: usize,
        seat: &mut Seat,
        computed: usize,
        (prompt, ends): (usize, bool),
        tokens: impl FnOnce() -> Vec<u32>,
    ) {
        let Some(pages) = self.batches.get_mut(batch).filter(|_| self.shares) else { return };
        let positions = pages.positions() as usize;
        let told = seat.filled * positions + seat.filled_part;
        let part = computed.saturating_sub(seat.filled * positions);
        let is_part = self.copies && (ends || told < prompt) && part > seat.filled_part;
        if part < positions && !is_part {
            return;
        }
        let tokens = tokens();
        while (seat.filled + 1) * positions <= computed {
            (seat.filled, seat.filled_part) = (seat.filled + 1, 0);
            let of = seat.filled;
            pages.fill(seat.kind, &seat.pages[..of], &tokens[..of * positions]);
        }
        let part = computed - seat.filled * positions;
        if is_part && part > 0 {
            seat.filled_part = part;
            pages.fill_part(seat.kind, &seat.pages[..=seat.filled], &tokens[..computed]);
        }
    }

    /// Returns the positions that a sequence's first page of its own can copy from another page,
    /// which is in use from now on. `known` is as in [`Caches::seat`].
    pub(super) fn part(&mut self, batch: usize, seat: &Seat, known: &[u32]) -> Option<Part> {
        let pages = self.batches.get_mut(batch).filter(|_| self.shares && self.copies)?;
        let (from, positions) = pages.find_part(seat.kind, &seat.pages[..seat.filled], known)?;
        pages.hold(from);
        Some(Part { from, to: seat.pages[seat.filled], positions })
    }

    /// Returns the page with these tokens after the contents named `before` in memory, and the name
    /// of its own contents. Does not acquire the page.
    pub(super) fn follow(&self, batch: usize, before: u64, tokens: &[u32]) -> Option<(u32, u64)> {
        self.batches.get(batch)?.follow(before, tokens)
    }

    /// Pins the page: it is not reused for other positions until it is released.
    pub(super) fn hold(&mut self, batch: usize, page: u32) {
        self.batches[batch].hold(page);
    }

    /// Releases a page that was pinned.
    pub(super) fn let_go(&mut self, batch: usize, page: u32) {
        self.batches[batch].release(page);
    }

    /// Returns the number of whole pages in `positions` positions.
    pub(super) fn whole_pages(&self, positions: u32) -> usize {
        self.batches.first().map_or(0, |pages| (positions / pages.positions()) as usize)
    }

    /// Releases the caches of a sequence.
    pub(super) fn release(&mut self, batch: usize, seat: Seat) {
        let Some(pages) = self.batches.get_mut(batch) else { return };
        // Pages are released in reverse, since a page is useless without those before it.
        seat.pages.into_iter().rev().for_each(|page| pages.release(page));
    }

    fn room(&self, batch: usize, seat: &Seat) -> u32 {
        let positions = self.batches[batch].positions();
        (seat.pages.len() as u32 * positions).min(self.max_context)
    }
}

/// Returns true if the lane that samples also appends to the caches, so that the positions it has
/// counted are computed and cached.
fn appends_before_sampling(plan: &Plan) -> bool {
    let lists = || plan.programs.iter().flat_map(|program| &program.lanes);
    let has = |of: fn(&Instruction) -> bool| {
        lists().filter(move |list| list.instructions.iter().any(of)).map(|list| list.lane)
    };
    let samples = has(Instruction::is_sample).next();
    has(|instruction| matches!(instruction, Instruction::Append(_)))
        .all(|lane| Some(lane) == samples)
}

/// Returns the identity of everything that keys and values depend on in addition to the tokens: the
/// rotation of their positions.
pub(super) fn kind(plan: &Plan, request: &Request) -> u64 {
    let length = SequenceLength(request.prompt.len() as u32 + request.max_new);
    let ropes = plan.config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
    let mut hasher = DefaultHasher::new();
    ropes.for_each(|rope| rope.frequency_class(length).hash(&mut hasher));
    hasher.finish() >> 1
}
