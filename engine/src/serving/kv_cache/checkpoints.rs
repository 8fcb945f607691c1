//! Checkpoints of the sequences in slots: planned in the step table, recorded once they are taken,
//! and acquired by sequences that begin from them.

use protocol::table::StepTable;

use super::{KvAllocation, KvCacheManager};
use crate::serving::checkpoints::PlannedCheckpoint;

impl KvCacheManager {
    /// Plans the first checkpoints of a sequence, before it is offered.
    pub(in super::super) fn plan_checkpoints(
        &mut self,
        table: &StepTable,
        batch: usize,
        slot: usize,
        allocation: &mut KvAllocation,
        max_tokens: u32,
    ) {
        table.clear_checkpoints(batch, slot);
        if self.has_checkpoints {
            allocation.checkpoints.planned = vec![None; table.planned_checkpoints()];
            let computed = allocation.computed;
            self.plan_next_checkpoints(table, batch, slot, allocation, computed, max_tokens);
        }
    }

    /// Records the checkpoints that were taken of a sequence with `computed` positions, as read
    /// from the table before this call, and whose pages are recorded.
    pub(in super::super) fn record_checkpoints(
        &mut self,
        table: &StepTable,
        batch: usize,
        slot: usize,
        allocation: &mut KvAllocation,
        computed: u32,
    ) {
        let Some(pages) = self.batches.get_mut(batch).filter(|_| self.has_checkpoints) else {
            return;
        };
        let recorded = allocation.recorded_pages as u32 * pages.positions();
        let checkpoints = &mut allocation.checkpoints;
        for index in 0..checkpoints.planned.len() {
            let Some(PlannedCheckpoint { position, number }) = checkpoints.planned[index] else {
                continue;
            };
            if computed < position {
                continue;
            }
            if table.is_checkpoint_taken(batch, slot, index, position) {
                if position > recorded {
                    continue;
                }
                let page = allocation.pages[(position / pages.positions()) as usize - 1];
                if checkpoints.is_new(position)
                    && let Some(before) = checkpoints.last_new.replace(page)
                {
                    pages.evict_checkpoint(before);
                }
                pages.record_checkpoint(number, page);
            } else if computed > position {
                pages.cancel_checkpoint(number);
            } else {
                continue;
            }
            checkpoints.planned[index] = None;
        }
    }

    /// Plans as many checkpoints of a sequence after `computed` positions as the table has space
    /// for, up to `max_tokens`.
    pub(in super::super) fn plan_next_checkpoints(
        &mut self,
        table: &StepTable,
        batch: usize,
        slot: usize,
        allocation: &mut KvAllocation,
        computed: u32,
        max_tokens: u32,
    ) {
        let Some(pages) = self.batches.get_mut(batch) else { return };
        let checkpoints = &mut allocation.checkpoints;
        while let Some(index) = checkpoints.planned.iter().position(Option::is_none) {
            let position = checkpoints.next_position(computed, max_tokens, pages.positions());
            let Some(position) = position else { return };
            let Some(number) = pages.reserve_checkpoint() else { return };
            checkpoints.planned[index] = Some(PlannedCheckpoint { position, number });
            table.plan_checkpoint(batch, slot, index, position, number);
        }
    }

    /// Returns true if sequences share pages only up to a checkpoint.
    pub(in super::super) fn has_checkpoints(&self) -> bool {
        self.has_checkpoints
    }

    /// Reserves a checkpoint into which a stored one is read; `None` if all are in use.
    pub(in super::super) fn reserve_checkpoint(&mut self, batch: usize) -> Option<u32> {
        self.batches.get_mut(batch)?.reserve_checkpoint()
    }

    /// Returns a reserved checkpoint that was not read.
    pub(in super::super) fn cancel_checkpoint(&mut self, batch: usize, number: u32) {
        self.batches[batch].cancel_checkpoint(number);
    }

    /// Lets a sequence begin from a checkpoint that was read, at the end of its computed positions,
    /// whose pages are recorded.
    pub(in super::super) fn adopt_checkpoint(
        &mut self,
        batch: usize,
        allocation: &mut KvAllocation,
        number: u32,
    ) {
        self.release_restored(batch, allocation);
        let pages = &mut self.batches[batch];
        let page = allocation.pages[(allocation.computed / pages.positions()) as usize - 1];
        pages.record_checkpoint(number, page);
        allocation.checkpoints.restored = pages.acquire_checkpoint_of(page);
        allocation.checkpoints.skip_to(allocation.computed);
    }

    /// Pins the checkpoint at the end of the page with contents `content`, if there is one: it is
    /// not replaced until it is released.
    pub(in super::super) fn pin_checkpoint(&mut self, batch: usize, content: u64) -> Option<u32> {
        self.batches.get_mut(batch)?.acquire_checkpoint(content)
    }

    /// Releases a checkpoint that was pinned.
    pub(in super::super) fn unpin_checkpoint(&mut self, batch: usize, number: u32) {
        self.batches[batch].release_checkpoint(number);
    }

    /// Releases the checkpoint from which a sequence begins, once it was copied to its slot.
    pub(in super::super) fn release_restored(
        &mut self,
        batch: usize,
        allocation: &mut KvAllocation,
    ) {
        if let Some(number) = allocation.checkpoints.restored.take() {
            self.batches[batch].release_checkpoint(number);
        }
    }
}
