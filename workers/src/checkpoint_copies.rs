//! Copies between the slots of a batch and its checkpoints.

use std::sync::Arc;

use program::checkpoints::{CheckpointLayout, SlotCache};
use program::ir::BufferId;
use program::plan::Plan;
use program::step_table::{Field, SlotState};
use protocol::serving::slot_state;
use protocol::table::StepTable;

use crate::memory::{Memories, View};

/// Takes the checkpoints of a batch that are due after its step, before further rows are listed.
/// Allocates nothing.
pub(crate) fn take_due(view: &View, table: &StepTable, batch: u16, layouts: &[CheckpointLayout]) {
    let Some(layout) = layouts.get(usize::from(batch)) else { return };
    let batch = usize::from(batch);
    for slot in 0..table.batch_size() {
        if slot_state(table, batch, slot) != SlotState::Running {
            continue;
        }
        let computed = table.field(batch, slot, Field::Computed);
        table.take_checkpoints(batch, slot, computed, |number| {
            for (cache, checkpoint, size_bytes) in parts(layout, slot, number) {
                view.copy(cache, checkpoint, size_bytes);
            }
        });
    }
}

/// Returns, for each cache, the first byte of a slot, the first byte of its part of a checkpoint,
/// each with its buffer, and the number of bytes.
fn parts(
    layout: &CheckpointLayout,
    slot: usize,
    number: u32,
) -> impl Iterator<Item = ((BufferId, usize), (BufferId, usize), usize)> {
    layout.parts(number).map(move |(SlotCache { cache, slot_bytes, .. }, first)| {
        ((*cache, slot * slot_bytes), (layout.buffer, first), *slot_bytes)
    })
}

/// Checkpoints in this worker's memory.
#[derive(Debug)]
pub(crate) struct CheckpointCopies {
    view: View,
    /// Checkpoints of each batch.
    layouts: Vec<CheckpointLayout>,
}

impl CheckpointCopies {
    /// Returns `None` if the plan has no checkpoints in this worker's memory.
    ///
    /// # Safety
    /// The coordinator orders checkpoints to be restored only if they are taken and not planned
    /// again before it is notified that they are restored, and only to slots that no list names
    /// before that.
    pub(crate) unsafe fn from_plan(
        plan: &Plan,
        memories: &Arc<Memories>,
    ) -> Option<CheckpointCopies> {
        let layouts = CheckpointLayout::of_batches(plan);
        if layouts.is_empty() || layouts.iter().any(|layout| !memories.is_mapped(layout.buffer)) {
            return None;
        }
        // SAFETY: what this view touches are the slots and checkpoints of orders, which are its own
        // by the contract of this function.
        let view = unsafe { View::new(Arc::clone(memories)) };
        Some(CheckpointCopies { view, layouts })
    }

    /// Copies a checkpoint of a batch to a slot. Allocates nothing.
    pub(crate) fn restore(&self, batch: u16, number: u32, slot: u16) {
        let Some(layout) = self.layouts.get(usize::from(batch)) else { return };
        for (cache, checkpoint, size_bytes) in parts(layout, usize::from(slot), number) {
            self.view.copy(checkpoint, cache, size_bytes);
        }
    }
}
