//! Slots of sequences: a state, and the rows of drafts that it has not taken in.
//!
//! A slot with drafts consists of the state, the inputs of up to `draft_positions` rows, each input
//! for all rows before the next one, and, as the last elements, the numbers of rows that the state
//! contains and of drafts. The position of a call's first row tells how many of the drafts were
//! accepted.

use model::state_slot::SLOT_COUNTS;

use super::state_rows::StateRows;
use crate::number::Number;
use crate::scratch::SharedPointer;

/// Slots of a batch.
#[derive(Debug)]
pub struct StateSlots<'a> {
    values: &'a mut [f32],
    draft_positions: usize,
}

/// Layout of slots with a recurrent state.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotLayout {
    pub(super) len: usize,
    pub(super) state_len: usize,
    pub(super) draft_positions: usize,
}

/// Slot of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    first: *mut f32,
    layout: SlotLayout,
}

impl<'a> StateSlots<'a> {
    /// Returns the slots in `values`, each of which has space for `draft_positions` drafts.
    pub fn new(values: &'a mut [f32], draft_positions: usize) -> StateSlots<'a> {
        StateSlots { values, draft_positions }
    }

    pub(super) fn draft_positions(&self) -> usize {
        self.draft_positions
    }

    /// Returns the number of slots of `len` elements.
    ///
    /// # Panics
    /// If there is a part of a slot.
    pub(super) fn count(&self, len: usize) -> usize {
        assert_eq!(self.values.len() % len.max(1), 0, "states are [slots, {len}]");
        self.values.len().checked_div(len).unwrap_or(usize::MAX)
    }

    pub(super) fn pointer(&mut self) -> SharedPointer<f32> {
        SharedPointer(self.values.as_mut_ptr())
    }

    /// # Panics
    /// If a sequence's state contains other rows than those before its own, except for drafts.
    pub(super) fn check_continued(&self, layout: &SlotLayout, sequences: &[StateRows]) {
        let SlotLayout { len, draft_positions, .. } = *layout;
        for StateRows { slot, past, .. } in sequences {
            if draft_positions == 0 || *past == 0 {
                continue;
            }
            let slot = &self.values[*slot as usize * len..][..len];
            let (_, counts) = slot.split_at(len - SLOT_COUNTS);
            let [contained, drafts] = [counts[0], counts[1]].map(f32::to_bits);
            let accepted = past.checked_sub(contained);
            let is_possible = accepted.is_some_and(|accepted| accepted <= drafts)
                && drafts as usize <= draft_positions;
            assert!(is_possible, "{contained} rows in a state, {drafts} drafts, and row {past}");
        }
    }

    /// Stores the drafts among a sequence's rows, `row` of which returns the inputs, of `widths`
    /// elements, and the numbers of rows that the state contains and of drafts.
    pub(super) fn keep_drafts<'i, T: Number, const N: usize>(
        &mut self,
        layout: &SlotLayout,
        sequence: &StateRows,
        widths: [usize; N],
        row: impl Fn(usize) -> [&'i [T]; N],
    ) {
        if self.draft_positions == 0 {
            return;
        }
        let SlotLayout { len, state_len, draft_positions } = *layout;
        let slot = &mut self.values[sequence.slot as usize * len..][..len];
        let (drafts, counts) = slot[state_len..].split_at_mut(len - SLOT_COUNTS - state_len);
        let contained = sequence.past + sequence.rows - sequence.drafts;
        counts.copy_from_slice(&[contained, sequence.drafts].map(f32::from_bits));
        let drafts: &mut [T] = bytemuck::cast_slice_mut(drafts);
        let first = sequence.range().end - sequence.drafts as usize;
        for draft in 0..sequence.drafts as usize {
            let mut before = 0;
            for (width, input) in widths.into_iter().zip(row(first + draft)) {
                drafts[before + draft * width..][..width].copy_from_slice(input);
                before += draft_positions * width;
            }
        }
    }
}

impl SlotLayout {
    /// Returns the slot of a sequence among slots that begin at `slots`.
    pub(super) fn slot(&self, slots: SharedPointer<f32>, sequence: &StateRows) -> Slot {
        let first = slots.pointer().wrapping_add(sequence.slot as usize * self.len);
        Slot { first, layout: *self }
    }
}

impl Slot {
    /// Returns the state.
    pub(super) fn state(&self) -> *mut f32 {
        self.first
    }

    /// Returns the stored inputs that follow those of `before` elements of each row.
    pub(super) fn drafts<T: Number>(&self, before: usize) -> *const T {
        let first = self.first.wrapping_add(self.layout.state_len).cast_const().cast::<T>();
        first.wrapping_add(before * self.layout.draft_positions)
    }

    /// Returns the number of drafts of the call before that precede a sequence's rows.
    ///
    /// # Safety
    /// The slot is the sequence's, which [`StateSlots::check_continued`] has checked, and no other
    /// thread writes it.
    pub(super) unsafe fn accepted(&self, sequence: &StateRows) -> usize {
        let SlotLayout { len, draft_positions, .. } = self.layout;
        if draft_positions == 0 || sequence.past == 0 {
            return 0;
        }
        let counts = self.first.wrapping_add(len - SLOT_COUNTS).cast::<[f32; SLOT_COUNTS]>();
        // SAFETY: the caller's promise; a slot with drafts ends with these numbers.
        let [contained, _] = unsafe { *counts }.map(f32::to_bits);
        (sequence.past - contained) as usize
    }
}
