//! Copies between pages of this worker's caches, for sequences that begin like others and part from
//! them within a page.

use std::sync::Arc;

use program::page_runs::PageRuns;
use program::plan::Plan;

use crate::memory::{Memories, View};

/// The pages of the caches in this worker's memory.
#[derive(Debug)]
pub(crate) struct PageCopies {
    view: View,
    /// Of each batch.
    runs: Vec<PageRuns>,
    page_positions: usize,
}

impl PageCopies {
    /// `None` where the plan's caches are not whole pages in this worker's memory.
    ///
    /// # Safety
    /// The coordinator orders positions of a page to be stored or copied that nobody writes to
    /// before it hears that they are, and pages to be fetched or copied to that no list names
    /// before it hears that they are.
    pub(crate) unsafe fn of(plan: &Plan, memories: &Arc<Memories>) -> Option<PageCopies> {
        let runs = (0..plan.shape.batches).map(|batch| PageRuns::of(plan, batch));
        let runs = runs.collect::<Option<Vec<_>>>()?;
        if runs.iter().flat_map(PageRuns::caches).any(|cache| !memories.has(*cache)) {
            return None;
        }
        // SAFETY: what this view touches are the pages of orders, which are its own by the contract
        // of this function.
        let view = unsafe { View::new(Arc::clone(memories)) };
        Some(PageCopies { view, runs, page_positions: plan.shape.page_positions as usize })
    }

    /// The pages for somebody else who carries out orders.
    pub(crate) fn pages(&self) -> (View, Vec<PageRuns>) {
        (self.view.clone(), self.runs.clone())
    }

    /// Copies the first positions of a page of a batch to another page. Allocates nothing.
    pub(crate) fn copy(&self, batch: u16, (from, to): (u32, u32), positions: u32) {
        let Some(runs) = self.runs.get(usize::from(batch)).filter(|_| from != to) else { return };
        // A run has its positions one behind the other.
        let size_bytes = runs.size_bytes / self.page_positions * positions as usize;
        for ((cache, from), (_, to)) in runs.of_page(from).zip(runs.of_page(to)) {
            let from: &[u8] = self.view.read(cache, from, size_bytes);
            self.view.write(cache, to, size_bytes).copy_from_slice(from);
        }
    }
}
