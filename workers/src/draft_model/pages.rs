//! Pages of a draft model's caches, which its slots share.

use protocol::table::StepTable;

/// Free pages, and those of each slot.
#[derive(Debug)]
pub(super) struct SlotPages {
    free: Vec<u32>,
    /// Pages of each slot, in the order of its positions.
    of_slots: Vec<Vec<u32>>,
    page_positions: usize,
}

impl SlotPages {
    /// Creates `pages` free pages of `page_positions` positions each for the slots of `table`.
    pub(super) fn new(table: &StepTable, pages: u32, page_positions: u32) -> SlotPages {
        let of_slot = || Vec::with_capacity(table.pages());
        SlotPages {
            free: (0..pages).rev().collect(),
            of_slots: (0..table.batch_size()).map(|_| of_slot()).collect(),
            page_positions: page_positions as usize,
        }
    }

    /// Gives a slot the pages of its first `positions` positions. Returns false, and changes
    /// nothing, if too few are free.
    pub(super) fn reserve(&mut self, table: &StepTable, slot: usize, positions: usize) -> bool {
        let pages = &mut self.of_slots[slot];
        let needed = positions.div_ceil(self.page_positions);
        let missing = needed.saturating_sub(pages.len());
        if needed > table.pages() || missing > self.free.len() {
            return false;
        }
        for page in self.free.drain(self.free.len() - missing..) {
            table.set_page(0, slot, pages.len(), page);
            pages.push(page);
        }
        true
    }

    /// Frees the pages of a slot.
    pub(super) fn free(&mut self, slot: usize) {
        self.free.append(&mut self.of_slots[slot]);
    }
}
