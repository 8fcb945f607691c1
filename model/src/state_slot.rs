//! Slot of a sequence in a layer with a state, in place of a cache.
//!
//! A state contains every row that it took in, so a drafted token must not enter it before it is
//! accepted. A slot therefore contains the rows of the last step's drafts next to the state: the
//! next step lets the state take in those that were accepted, and then its own rows. Inputs of a
//! convolution are stored by position, with space for those of drafts.

/// Number of bytes of an element of a slot, which is f32 regardless of the run's dtype.
pub const STATE_ELEMENT_BYTES: usize = 4;

/// Number of elements to which slots with drafts are rounded up: a cache line.
const LINE_ELEMENTS: usize = 16;

/// Returns the number of inputs of a convolution that are stored per sequence.
pub(crate) const fn stored_inputs(taps: usize, draft_positions: usize) -> usize {
    if taps > 1 { taps - 1 + draft_positions } else { 0 }
}

/// Number of the last elements of a slot with drafts: the number of rows that the state contains,
/// and that of the drafts after them.
pub const SLOT_COUNTS: usize = 2;

/// Returns the number of elements of a slot: the state, the rows of drafts, and the counts.
pub(crate) const fn slot_len(state_len: usize, row_len: usize, draft_positions: usize) -> usize {
    match draft_positions {
        0 => state_len,
        rows => (state_len + rows * row_len + SLOT_COUNTS).next_multiple_of(LINE_ELEMENTS),
    }
}
