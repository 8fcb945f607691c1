//! Sequences owned by the device or by the host, and the parameters of their iterations.

use program::ir::{At, ProgramId};
use program::map::Chunk;
use program::owners::{DEVICE, HOST};
use program::step_table::{Field, Home};
use schedule::hybrid::{Lags, Limits, Policy, StepCosts};

use super::{Item, StepTable};

/// Offset of the following programs; the policy and the limits set by the run come first.
const BEFORE_FOLLOWING: usize = 6;
/// Offset of the costs.
const BEFORE_COSTS: usize = BEFORE_FOLLOWING + 2;
/// Offset of the counters.
const BEFORE_COUNTS: usize = BEFORE_COSTS + StepCosts::WORDS;

const _: () = assert!(BEFORE_COUNTS + COUNTS <= program::step_table::OWNERS_WORDS);

/// Number of programs that are counted.
const COUNTS: usize = ProgramId::OF_OWNERS.len();

/// Parameters that decide the next iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deciding {
    pub policy: Policy,
    /// Limits of an iteration; the limit on rows is the program's.
    pub limits: Limits,
    pub costs: StepCosts,
}

impl StepTable {
    /// Returns true if sequences have owners.
    pub fn has_owners(&self) -> bool {
        self.device_slots > 0
    }

    /// Returns true if rows of the host's sequences may be deferred.
    pub fn can_lag(&self) -> bool {
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
    pub fn home(&self, batch: usize, sequence: usize) -> Home {
        match self.field(batch, sequence, Field::Home) {
            1 => Home::Device,
            2 => Home::Host,
            _ => Home::Nowhere,
        }
    }

    /// Returns the part of the caches that a sequence's rows are appended to.
    pub fn owner(&self, batch: usize, sequence: usize) -> Chunk {
        if self.home(batch, sequence) == Home::Device { DEVICE } else { HOST }
    }

    /// Returns the side that attends for rows of a sequence: its owner, or the device if no
    /// positions precede them.
    pub fn attends(&self, at: At, item: &Item) -> Chunk {
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
            true => self.field(batch, sequence, Field::Seat) as usize,
            false => sequence,
        };
        let kept = self.kept_positions(batch, sequence, at.layer);
        (place * self.kv_heads + head) * kept * self.head_dim
    }

    /// Returns the parameters that decide the next iteration.
    pub fn deciding(&self) -> Deciding {
        let first = self.layout.owners();
        let word = |offset: usize| self.words.load(first + offset);
        let policy = Policy::ALL.get(word(0) as usize).copied().unwrap_or(Policy::GpuOnly);
        let limits = Limits {
            rows: self.program(ProgramId::STEP).stream_rows,
            page_positions: word(1).max(1),
            device_pages: word(2),
            host_pages: word(3),
            patience: word(4),
            lags: Lags::ALL.get(word(5) as usize).copied().unwrap_or(Lags::Never),
        };
        let costs = std::array::from_fn(|place| word(BEFORE_COSTS + place));
        Deciding { policy, limits, costs: StepCosts::of_words(&costs) }
    }

    /// Sets the parameters that decide the next iteration.
    pub fn set_deciding(&self, deciding: &Deciding) {
        let Deciding { policy, limits, costs } = deciding;
        let store = |offset, word| self.words.store(self.layout.owners() + offset, word);
        let place = Policy::ALL.iter().position(|other| other == policy).unwrap_or(0);
        let Limits { page_positions, device_pages, host_pages, patience, lags, .. } = *limits;
        let lags = Lags::ALL.iter().position(|other| *other == lags).unwrap_or(0) as u32;
        let words = [place as u32, page_positions, device_pages, host_pages, patience, lags];
        words.into_iter().enumerate().for_each(|(offset, word)| store(offset, word));
        let costs = costs.words().into_iter().enumerate();
        costs.for_each(|(place, word)| store(BEFORE_COSTS + place, word));
    }

    /// Returns the number of iterations of each shape since the table was cleared, and of caches
    /// moved in either direction, by program. The numbers may wrap around.
    pub fn counts(&self) -> [u32; COUNTS] {
        std::array::from_fn(|id| self.words.load(self.layout.owners() + BEFORE_COUNTS + id))
    }

    /// Increments the counter of a program.
    pub(crate) fn count(&self, program: ProgramId) {
        let word = self.layout.owners() + BEFORE_COUNTS + program.index();
        self.words.store(word, self.words.load(word).wrapping_add(1));
    }

    /// Returns the programs of the following stages.
    pub fn following(&self) -> impl Iterator<Item = ProgramId> + '_ {
        let offsets = BEFORE_FOLLOWING..BEFORE_COSTS;
        let words = offsets.map(|offset| self.words.load(self.layout.owners() + offset));
        words.filter_map(|word| Some(ProgramId(word.checked_sub(1)? as u8)))
    }

    /// Sets the programs of the following stages.
    pub fn set_following(&self, programs: [Option<ProgramId>; 2]) {
        for (offset, program) in (BEFORE_FOLLOWING..).zip(programs) {
            let word = program.map_or(0, |program| u32::from(program.0) + 1);
            self.words.store(self.layout.owners() + offset, word);
        }
    }
}
