//! Sequences owned by the device or by the host, and the parameters of their iterations.

use program::ir::{At, ProgramId};
use program::kv_owner::{DEVICE, HOST};
use program::map::Chunk;
use program::step_table::{Field, KvTier};
use scheduler::hybrid::{DeferredRows, IterationLimits, SchedulingPolicy, StepCosts};

use super::head_sizes::HeadSizes;
use super::{StepTable, WorkItem};

/// Offset of the following programs; the policy and the limits set by the run come first.
const FOLLOWING_OFFSET: usize = 6;
/// Offset of the costs.
const COSTS_OFFSET: usize = FOLLOWING_OFFSET + 2;
/// Offset of the counters.
const COUNTS_OFFSET: usize = COSTS_OFFSET + StepCosts::WORDS;

const _: () = assert!(COUNTS_OFFSET + COUNTS <= program::step_table::OWNERS_WORDS);

/// Number of programs that are counted.
const COUNTS: usize = ProgramId::OF_OWNERS.len();

/// Parameters that decide the next iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybridPolicy {
    pub policy: SchedulingPolicy,
    /// Limits of an iteration; the limit on rows is the program's.
    pub limits: IterationLimits,
    pub costs: StepCosts,
}

impl StepTable {
    /// Returns true if sequences have owners.
    pub fn has_owners(&self) -> bool {
        self.device_slots > 0
    }

    /// Returns true if rows of the host's sequences may be deferred.
    pub fn can_defer_rows(&self) -> bool {
        self.has_owners() && self.programs.len() > ProgramId::ASYNC.index()
    }

    /// Returns the programs of a run whose sequences have owners.
    pub(crate) fn programs_of_owners(&self) -> impl Iterator<Item = ProgramId> + use<> {
        let count = self.programs.len();
        ProgramId::OF_OWNERS.into_iter().filter(move |program| program.index() < count)
    }

    /// Returns the number of sequences whose caches fit on the device.
    pub fn device_slots(&self) -> usize {
        self.device_slots
    }

    /// Returns the tier of a sequence's caches.
    pub fn tier(&self, batch: usize, sequence: usize) -> KvTier {
        match self.field(batch, sequence, Field::Tier) {
            1 => KvTier::Device,
            2 => KvTier::Host,
            _ => KvTier::Nowhere,
        }
    }

    /// Returns the part of the caches that a sequence's rows are appended to.
    pub fn owner(&self, batch: usize, sequence: usize) -> Chunk {
        if self.tier(batch, sequence) == KvTier::Device { DEVICE } else { HOST }
    }

    /// Returns the side that attends for rows of a sequence: its owner, or the device if no
    /// positions precede them.
    pub fn attention_side(&self, at: At, item: &WorkItem) -> Chunk {
        match item.first {
            0 => DEVICE,
            _ => self.owner(usize::from(at.batch), item.slot),
        }
    }

    /// Returns the number of elements before the first position of a unit in an owner's part of a
    /// layer's K or V cache. On the host each slot has an extent.
    pub fn owned_offset(&self, at: At, sequence: usize, head: usize, owner: Chunk) -> usize {
        let batch = usize::from(at.batch);
        let place = match owner == DEVICE {
            true => self.field(batch, sequence, Field::Allocation) as usize,
            false => sequence,
        };
        let kept = self.kept_positions(batch, sequence, at.layer);
        let HeadSizes { kv_heads, head_dim, .. } = self.heads_of(at.layer);
        (place * kv_heads + head) * kept * head_dim
    }

    /// Returns the parameters that decide the next iteration.
    pub fn hybrid_policy(&self) -> HybridPolicy {
        let first = self.layout.owners();
        let word = |offset: usize| self.words.load(first + offset);
        let policy = SchedulingPolicy::ALL
            .get(word(0) as usize)
            .copied()
            .unwrap_or(SchedulingPolicy::GpuOnly);
        let limits = IterationLimits {
            rows: self.program(ProgramId::STEP).stream_rows,
            page_positions: word(1).max(1),
            device_pages: word(2),
            host_pages: word(3),
            patience: word(4),
            deferred_rows: DeferredRows::ALL
                .get(word(5) as usize)
                .copied()
                .unwrap_or(DeferredRows::Never),
        };
        let costs = std::array::from_fn(|place| word(COSTS_OFFSET + place));
        HybridPolicy { policy, limits, costs: StepCosts::from_words(&costs) }
    }

    /// Sets the parameters that decide the next iteration.
    pub fn set_hybrid_policy(&self, parameters: &HybridPolicy) {
        let HybridPolicy { policy, limits, costs } = parameters;
        let store = |offset, word| self.words.store(self.layout.owners() + offset, word);
        let place = SchedulingPolicy::ALL.iter().position(|other| other == policy).unwrap_or(0);
        let IterationLimits {
            page_positions,
            device_pages,
            host_pages,
            patience,
            deferred_rows,
            ..
        } = *limits;
        let deferred_rows =
            DeferredRows::ALL.iter().position(|other| *other == deferred_rows).unwrap_or(0) as u32;
        let words =
            [place as u32, page_positions, device_pages, host_pages, patience, deferred_rows];
        words.into_iter().enumerate().for_each(|(offset, word)| store(offset, word));
        let costs = costs.words().into_iter().enumerate();
        costs.for_each(|(place, word)| store(COSTS_OFFSET + place, word));
    }

    /// Returns the number of iterations of each shape since the table was cleared, and of caches
    /// moved in either direction, by program. The numbers may wrap around.
    pub fn program_counts(&self) -> [u32; COUNTS] {
        std::array::from_fn(|id| self.words.load(self.layout.owners() + COUNTS_OFFSET + id))
    }

    /// Increments the counter of a program.
    pub(crate) fn count_program(&self, program: ProgramId) {
        let word = self.layout.owners() + COUNTS_OFFSET + program.index();
        self.words.store(word, self.words.load(word).wrapping_add(1));
    }

    /// Returns the programs of the following stages.
    pub fn next_programs(&self) -> impl Iterator<Item = ProgramId> + '_ {
        let offsets = FOLLOWING_OFFSET..COSTS_OFFSET;
        let words = offsets.map(|offset| self.words.load(self.layout.owners() + offset));
        words.filter_map(|word| Some(ProgramId(word.checked_sub(1)? as u8)))
    }

    /// Sets the programs of the following stages.
    pub fn set_next_programs(&self, programs: [Option<ProgramId>; 2]) {
        for (offset, program) in (FOLLOWING_OFFSET..).zip(programs) {
            let word = program.map_or(0, |program| u32::from(program.0) + 1);
            self.words.store(self.layout.owners() + offset, word);
        }
    }
}
