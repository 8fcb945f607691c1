//! Rows of sequences that have a state.

/// Maximum number of slots: the number of distinct sequences of a batch.
const SLOTS_MAX: usize = 1 << 16;

/// Consecutive rows of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRows {
    /// First row.
    pub row0: u32,
    pub rows: u32,
    /// Slot of the sequence's state.
    pub slot: u32,
    /// Position of the first row. At 0 the state is empty.
    pub past: u32,
    /// Number of rows whose tokens are drafts, the last ones. The state does not contain them until
    /// the next call says, by its `past`, how many of them were accepted.
    pub drafts: u32,
}

impl StateRows {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        let first = self.row0 as usize;
        first..first + self.rows as usize
    }
}

/// # Panics
/// If rows or slots of sequences are out of range, or shared between sequences.
pub(super) fn check(sequences: &[StateRows], rows: usize, slots: usize, draft_positions: usize) {
    let mut taken = [0u64; SLOTS_MAX / 64];
    let mut end = 0;
    for sequence in sequences {
        let (slot, own) = (sequence.slot as usize, sequence.range());
        assert!(own.start >= end, "sequences' rows lie one behind the other");
        assert!(own.end <= rows, "a sequence's rows are among those of the call");
        let drafts = sequence.drafts as usize;
        assert!(drafts <= own.len(), "drafts are rows of their sequence");
        assert!(drafts <= draft_positions, "{drafts} drafts, and slots for {draft_positions}");
        end = own.end;
        assert!(slot < slots.min(SLOTS_MAX), "a sequence's slot is among those of the state");
        let (word, bit) = (&mut taken[slot / 64], 1 << (slot % 64));
        assert!(*word & bit == 0, "each sequence has a slot of its own");
        *word |= bit;
    }
}
