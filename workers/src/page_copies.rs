//! Copies between pages of this worker's caches, for sequences that share a prefix with others and
//! diverge within a page.

use std::sync::Arc;

use program::page_runs::PageRuns;
use program::plan::Plan;

use crate::memory::{Memories, View};

/// The pages of the caches in this worker's memory.
#[derive(Debug)]
pub(crate) struct PageCopies {
    view: View,
    /// Page runs of each batch.
    runs: Vec<PageRuns>,
}

impl PageCopies {
    /// Returns `None` if the plan's caches are not whole pages in this worker's memory.
    ///
    /// # Safety
    /// The coordinator orders positions of a page to be stored or copied only if they are not
    /// written before it is notified that they are stored or copied, and pages to be fetched or
    /// copied to only if no list names them before it is notified that they are complete.
    pub(crate) unsafe fn from_plan(plan: &Plan, memories: &Arc<Memories>) -> Option<PageCopies> {
        let runs = (0..plan.shape.batches).map(|batch| PageRuns::of(plan, batch));
        let runs = runs.collect::<Option<Vec<_>>>()?;
        if runs.iter().flat_map(PageRuns::caches).any(|cache| !memories.is_mapped(cache)) {
            return None;
        }
        // SAFETY: what this view touches are the pages of orders, which are its own by the contract
        // of this function.
        let view = unsafe { View::new(Arc::clone(memories)) };
        Some(PageCopies { view, runs })
    }

    /// Returns the pages for another thread that executes orders.
    pub(crate) fn pages(&self) -> (View, Vec<PageRuns>) {
        (self.view.clone(), self.runs.clone())
    }

    /// Copies the first positions of a page of a batch to another page. Allocates nothing.
    pub(crate) fn copy(&self, batch: u16, from: u32, to: u32, positions: u32) {
        let Some(runs) = self.runs.get(usize::from(batch)).filter(|_| from != to) else { return };
        // The places of a run are consecutive.
        for (from, to) in runs.of_page(from).zip(runs.of_page(to)) {
            let size_bytes = from.first_bytes(positions as usize);
            let bytes: &[u8] = self.view.read(from.cache, from.offset_bytes, size_bytes);
            self.view.write(to.cache, to.offset_bytes, size_bytes).copy_from_slice(bytes);
        }
    }
}
