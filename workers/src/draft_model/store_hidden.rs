//! Storing of hidden states of a run's sequences, in the pages of their copies.

use program::step_table::Field;
use protocol::drafts::HiddenRows;
use protocol::table::StepTable;

use super::{DraftModel, DraftSlot};
use crate::hidden_store::RowPlace;

impl DraftModel {
    /// Stores hidden states of a sequence. If the caches have too few pages for them, the copy
    /// begins anew with the next ones.
    pub(super) fn store_hidden(&mut self, table: &StepTable, batch: usize, given: HiddenRows<'_>) {
        let slot = self.slot(batch, given.slot);
        let field = |field| table.field(batch, given.slot, field);
        let sequence = Some((field(Field::Arrival), field(Field::PromptLen)));
        let DraftSlot { sequence: known, skipped, hidden, .. } = self.slots[slot];
        if known != sequence || skipped + hidden != given.first + 1 {
            self.clear_slot(slot);
            let state = &mut self.slots[slot];
            (state.sequence, state.skipped) = (sequence, given.first + 1);
        }
        let Some(states) = &mut self.hidden else { return };
        let state = &mut self.slots[slot];
        let rows = given.rows.chunks_exact(states.hidden_size());
        let count = state.hidden + rows.len();
        if self.pages.reserve(&self.table, slot, count) {
            for (row, position) in rows.zip(state.hidden..) {
                states.write(&self.table, RowPlace { batch: 0, slot, position }, row);
            }
            state.hidden = count;
        }
    }
}
