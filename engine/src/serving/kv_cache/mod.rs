//! KV caches of the sequences in slots: pages that sequences share and release, or one extent per
//! slot.

use std::hash::{DefaultHasher, Hash, Hasher};

use model::rope::SequenceLength;
use program::ir::Instruction;
use program::page_runs::PageRuns;
use program::plan::Plan;
use program::step_table::Field;
use protocol::group::GenerationRequest;
use protocol::table::StepTable;
use scheduler::{COPIED_POSITIONS_MIN, PagePool};

use super::checkpoints::SequenceCheckpoints;

mod checkpoints;

/// Inverse of a share: a sequence waits for another one only if that computes at least this share
/// of what the first one would otherwise have to compute.
const WAIT_SHARE_DIVISOR: usize = 4;

/// Caches of all slots.
#[derive(Debug)]
pub(super) struct KvCacheManager {
    /// Pages of each batch; empty if each slot has an extent.
    batches: Vec<PagePool>,
    /// Number of pages of a sequence as long as the context.
    pages_max: u32,
    max_context: u32,
    /// True if sequences with a common prefix can share pages.
    shares_pages: bool,
    /// True if they can do so only up to a checkpoint: a ring of positions belongs to a single
    /// sequence, and so does a state.
    has_checkpoints: bool,
    /// True if the worker that owns the caches can copy a part of a page.
    copies_partial_pages: bool,
}

/// Caches of a sequence in a slot.
#[derive(Debug, Default)]
pub(super) struct KvAllocation {
    pages: Vec<u32>,
    /// Number of pages whose contents were recorded as complete.
    recorded_pages: usize,
    /// Number of positions after these pages whose contents were recorded.
    recorded_positions: usize,
    /// Identity of everything that the contents depend on in addition to the tokens.
    content_kind: u64,
    /// Checkpoints, if the plan has any.
    pub(super) checkpoints: SequenceCheckpoints,
    /// Number of positions that were computed already.
    pub(super) computed: u32,
    /// Number of positions for which caches are allocated.
    pub(super) capacity: u32,
}

/// A sequence in a slot whose prompt is being computed.
#[derive(Debug)]
pub(super) struct InFlightPrefill<'a> {
    pub(super) allocation: &'a KvAllocation,
    /// Tokens of its prompt; empty if the prompt is complete, or if the sequence is leaving its
    /// slot.
    pub(super) tokens: &'a [u32],
}

impl KvAllocation {
    /// Returns the page at `index` among those of the sequence.
    pub(super) fn page(&self, index: usize) -> u32 {
        self.pages[index]
    }

    /// Returns the identity of everything that the contents depend on in addition to the tokens.
    pub(super) fn kind(&self) -> u64 {
        self.content_kind
    }
}

/// Positions to be copied into a sequence's page from another page, which stays in use until then.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialPageCopy {
    pub(super) source_page: u32,
    pub(super) target_page: u32,
    pub(super) positions: u32,
}

impl KvCacheManager {
    pub(super) fn new(plan: &Plan) -> KvCacheManager {
        let shape = plan.shape;
        let pages = match shape.page_positions {
            0 => Vec::new(),
            positions => {
                let pages = PagePool::new(shape.kv_pages, positions);
                vec![pages.with_checkpoints(shape.checkpoints); usize::from(shape.batches)]
            }
        };
        KvCacheManager {
            batches: pages,
            pages_max: plan.table.pages,
            max_context: shape.max_context,
            shares_pages: shape.checkpoints > 0 || !overwrites(plan),
            has_checkpoints: shape.checkpoints > 0,
            copies_partial_pages: shape.checkpoints == 0
                && shape.page_positions > COPIED_POSITIONS_MIN
                && (0..shape.batches).all(|batch| PageRuns::of(plan, batch).is_some())
                && appends_before_sampling(plan),
        }
    }

    /// Returns the number of positions for which there are caches, and the number of those in use.
    /// With extents, the latter is `known`, the number of positions of all sequences in the `slots`
    /// slots.
    pub(super) fn position_counts(&self, slots: u64, known: u64) -> (u64, u64) {
        if self.batches.is_empty() {
            return (slots * u64::from(self.max_context), known);
        }
        let position_count = |count: &dyn Fn(&PagePool) -> u32| -> u64 {
            let positions =
                |pages: &PagePool| u64::from(count(pages)) * u64::from(pages.positions());
            self.batches.iter().map(positions).sum()
        };
        (position_count(&|pages| pages.used() + pages.available()), position_count(&PagePool::used))
    }

    /// Returns true if another sequence of the batch is about to compute positions that a sequence
    /// of this kind could then share. `known` are the tokens of this sequence whose positions may
    /// be shared, all except the last.
    pub(super) fn is_prefix_in_flight(
        &self,
        batch: usize,
        kind: u64,
        known: &[u32],
        other: &InFlightPrefill<'_>,
    ) -> bool {
        let Some(pages) = self.batches.get(batch).filter(|_| self.shares_pages) else {
            return false;
        };
        if kind != other.allocation.content_kind {
            return false;
        }
        if self.has_checkpoints {
            let common = known.iter().zip(other.tokens).take_while(|(a, b)| a == b).count();
            let positions = other.allocation.checkpoints.positions().map(|at| at as usize);
            let shared = positions.filter(|at| *at <= common && *at < known.len()).max();
            return shared.is_some_and(|shared| {
                let found = pages.count_checkpointed(kind, known) as usize;
                is_worth_waiting(found, shared, known.len())
            });
        }
        let filled = other.allocation.recorded_pages * pages.positions() as usize;
        let upto = filled + pages.positions() as usize;
        let is_page = || other.tokens.get(..upto).is_some_and(|tokens| *tokens == known[..upto]);
        if upto < known.len() && is_page() {
            return true;
        }
        // A part of the page that the other sequence is filling: the last page of its prompt, or
        // the one in which the prompts diverge.
        if !self.copies_partial_pages || known.len() < filled {
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
        if part < COPIED_POSITIONS_MIN as usize {
            return false;
        }
        let found = pages.count_cached(kind, known) as usize;
        is_worth_waiting(found, filled + part, known.len())
    }

    /// Allocates caches for a sequence of this kind that begins in a batch in which `growing` other
    /// sequences will need more pages; one page is left for each of them. Returns `None` if there
    /// is not enough space now. `known` is as in [`KvCacheManager::is_prefix_in_flight`]; the
    /// sequence has `count` tokens in total.
    pub(super) fn allocate(
        &mut self,
        batch: usize,
        growing: usize,
        content_kind: u64,
        known: &[u32],
        count: usize,
    ) -> Option<KvAllocation> {
        let Some(pages) = self.batches.get_mut(batch) else {
            return Some(KvAllocation { capacity: self.max_context, ..KvAllocation::default() });
        };
        let mut checkpoints = SequenceCheckpoints::default();
        let shared = if self.has_checkpoints {
            let found = pages.acquire_checkpointed(content_kind, known);
            let [computed, known] = [found.pages.len(), found.known_pages]
                .map(|count| count as u32 * pages.positions());
            checkpoints =
                SequenceCheckpoints::new(pages.positions(), computed, known, count as u32);
            checkpoints.restored = found.checkpoint;
            found.pages
        } else if self.shares_pages {
            pages.acquire_prefix(content_kind, known)
        } else {
            Vec::new()
        };
        let needed = (count as u32 + 1).div_ceil(pages.positions()).min(self.pages_max);
        let more = needed.saturating_sub(shared.len() as u32);
        let mut allocation = KvAllocation {
            recorded_pages: shared.len(),
            recorded_positions: 0,
            computed: shared.len() as u32 * pages.positions(),
            pages: shared,
            content_kind,
            checkpoints,
            capacity: 0,
        };
        if pages.available() < more + growing as u32 {
            self.release(batch, allocation);
            return None;
        }
        allocation.pages.extend((0..more).filter_map(|_| pages.allocate()));
        allocation.capacity = self.capacity(batch, &allocation);
        Some(allocation)
    }

    /// Writes a sequence's pages into its slot, before the sequence is offered.
    pub(super) fn write_pages(
        &self,
        table: &StepTable,
        batch: usize,
        slot: usize,
        allocation: &KvAllocation,
    ) {
        for (index, page) in allocation.pages.iter().enumerate() {
            table.set_page(batch, slot, index, *page);
        }
    }

    /// Extends the caches of a running sequence to `needed` positions. Returns false if no pages
    /// are available.
    pub(super) fn grow(
        &mut self,
        table: &StepTable,
        batch: usize,
        slot: usize,
        allocation: &mut KvAllocation,
        needed: u32,
    ) -> bool {
        let needed = needed.min(self.max_context);
        while allocation.capacity < needed {
            let Some(page) = self.batches.get_mut(batch).and_then(PagePool::allocate) else {
                return false;
            };
            table.set_page(batch, slot, allocation.pages.len(), page);
            allocation.pages.push(page);
            allocation.capacity = self.capacity(batch, allocation);
            // SYNC POINT: room, released here once the page is written.
            table.set_field(batch, slot, Field::Capacity, allocation.capacity);
        }
        true
    }

    /// Records the contents of the pages that a sequence has filled, given that `computed`
    /// positions of its tokens are computed. The tokens are only listed if there is something to
    /// record. Parts of a page are recorded for its prompt, which has `prompt` tokens, and when the
    /// sequence `ends`.
    pub(super) fn record_filled(
        &mut self,
        batch: usize,
        allocation: &mut KvAllocation,
        computed: usize,
        prompt: usize,
        ends: bool,
        tokens: impl FnOnce() -> Vec<u32>,
    ) {
        let Some(pages) = self.batches.get_mut(batch).filter(|_| self.shares_pages) else { return };
        let positions = pages.positions() as usize;
        let recorded = allocation.recorded_pages * positions + allocation.recorded_positions;
        let part = computed.saturating_sub(allocation.recorded_pages * positions);
        let is_part = self.copies_partial_pages
            && (ends || recorded < prompt)
            && part > allocation.recorded_positions;
        if part < positions && !is_part {
            return;
        }
        let tokens = tokens();
        while (allocation.recorded_pages + 1) * positions <= computed {
            (allocation.recorded_pages, allocation.recorded_positions) =
                (allocation.recorded_pages + 1, 0);
            let page_count = allocation.recorded_pages;
            pages.record_full(
                allocation.content_kind,
                &allocation.pages[..page_count],
                &tokens[..page_count * positions],
            );
        }
        let part = computed - allocation.recorded_pages * positions;
        if is_part && part > 0 {
            allocation.recorded_positions = part;
            pages.record_partial(
                allocation.content_kind,
                &allocation.pages[..=allocation.recorded_pages],
                &tokens[..computed],
            );
        }
    }

    /// Returns the positions that a sequence's first page of its own can copy from another page,
    /// which is in use from now on. `known` is as in [`KvCacheManager::allocate`].
    pub(super) fn find_partial_page(
        &mut self,
        batch: usize,
        allocation: &KvAllocation,
        known: &[u32],
    ) -> Option<PartialPageCopy> {
        let pages = self
            .batches
            .get_mut(batch)
            .filter(|_| self.shares_pages && self.copies_partial_pages)?;
        let (source_page, positions) = pages.find_partial(
            allocation.content_kind,
            &allocation.pages[..allocation.recorded_pages],
            known,
        )?;
        pages.acquire(source_page);
        Some(PartialPageCopy {
            source_page,
            target_page: allocation.pages[allocation.recorded_pages],
            positions,
        })
    }

    /// Returns the page with these tokens after the contents named `before` in memory, and the name
    /// of its own contents. Does not acquire the page.
    pub(super) fn page_after(
        &self,
        batch: usize,
        before: u64,
        tokens: &[u32],
    ) -> Option<(u32, u64)> {
        self.batches.get(batch)?.find_next(before, tokens)
    }

    /// Pins the page: it is not reused for other positions until it is released.
    pub(super) fn pin(&mut self, batch: usize, page: u32) {
        self.batches[batch].acquire(page);
    }

    /// Releases a page that was pinned.
    pub(super) fn unpin(&mut self, batch: usize, page: u32) {
        self.batches[batch].release(page);
    }

    /// Returns the number of whole pages in `positions` positions.
    pub(super) fn whole_pages(&self, positions: u32) -> usize {
        self.batches.first().map_or(0, |pages| (positions / pages.positions()) as usize)
    }

    /// Releases the caches of a sequence that no list names any more.
    pub(super) fn release(&mut self, batch: usize, allocation: KvAllocation) {
        let Some(pages) = self.batches.get_mut(batch) else { return };
        let planned = allocation.checkpoints.planned.iter().flatten();
        planned.for_each(|planned| pages.cancel_checkpoint(planned.number));
        allocation.checkpoints.restored.iter().for_each(|one| pages.release_checkpoint(*one));
        // Pages are released in reverse, since a page is useless without those before it.
        allocation.pages.into_iter().rev().for_each(|page| pages.release(page));
    }

    fn capacity(&self, batch: usize, allocation: &KvAllocation) -> u32 {
        let positions = self.batches[batch].positions();
        (allocation.pages.len() as u32 * positions).min(self.max_context)
    }
}

/// Returns true if layers overwrite what they keep of a sequence as it grows.
fn overwrites(plan: &Plan) -> bool {
    !plan.table.windows.is_empty() || plan.config.layers.has_states()
}

/// Returns true if a sequence of `tokens` tokens that could begin after `found` of them should wait
/// until another one has computed `shared` of them.
fn is_worth_waiting(found: usize, shared: usize, tokens: usize) -> bool {
    // A sequence that waits for few positions loses more time than it saves.
    found < shared && (shared - found) * WAIT_SHARE_DIVISOR >= tokens - found
}

/// Returns true if the lane that samples also appends to the caches, so that the positions it has
/// counted are computed and cached.
fn appends_before_sampling(plan: &Plan) -> bool {
    let lists = || plan.programs.iter().flat_map(|program| &program.lanes);
    let has = |matches: fn(&Instruction) -> bool| {
        lists().filter(move |list| list.instructions.iter().any(matches)).map(|list| list.lane)
    };
    let samples = has(Instruction::is_sample).next();
    has(|instruction| matches!(instruction, Instruction::Append(_)))
        .all(|lane| Some(lane) == samples)
}

/// Returns the identity of everything that keys and values depend on in addition to the tokens: the
/// rotation of their positions.
pub(super) fn content_kind(plan: &Plan, request: &GenerationRequest) -> u64 {
    let length = SequenceLength(request.prompt.len() as u32 + request.max_new);
    let ropes = plan.config.layers.kinds().iter().filter_map(|kind| kind.rope.as_ref());
    let mut hasher = DefaultHasher::new();
    ropes.for_each(|rope| rope.frequency_class(length).hash(&mut hasher));
    hasher.finish() >> 1
}
