//! Beginnings of prompts between this worker's caches and the prompt store.

use std::sync::Arc;

use program::page_runs::PageRuns;
use program::plan::Plan;
use prompt_store::{Page, Store, Wrote};

use crate::error::WorkerError;
use crate::memory::{Memories, View};
use crate::shared::protocol::{FromWorker, PromptsAt, StoredPage, ToWorker};

/// The pages of the caches and the store.
#[derive(Debug)]
pub(crate) struct Prompts {
    store: Store,
    view: View,
    /// Of each batch.
    runs: Vec<PageRuns>,
}

impl Prompts {
    /// `None` where the plan's caches are not whole pages in this worker's memory.
    ///
    /// # Errors
    /// A folder that cannot be written.
    ///
    /// # Safety
    /// The coordinator orders pages to be stored that nobody writes to before it hears that they
    /// are, and pages to be fetched that no list names before it hears that they are.
    pub(crate) unsafe fn open(
        at: &PromptsAt,
        plan: &Plan,
        memories: &Arc<Memories>,
    ) -> Result<Option<Prompts>, WorkerError> {
        let runs = (0..plan.shape.batches).map(|batch| PageRuns::of(plan, batch));
        let Some(runs) = runs.collect::<Option<Vec<_>>>() else { return Ok(None) };
        if runs.iter().flat_map(PageRuns::caches).any(|cache| !memories.has(*cache)) {
            return Ok(None);
        }
        // SAFETY: what this view touches are the pages of orders, which are its own by the contract
        // of this function.
        let view = unsafe { View::new(Arc::clone(memories)) };
        let store = Store::open(&at.directory, at.origin.clone(), at.most_bytes)?;
        Ok(Some(Prompts { store, view, runs }))
    }

    /// Stores or fetches; what to say of it.
    pub(crate) fn carry_out(&mut self, order: ToWorker) -> Option<FromWorker> {
        match order {
            ToWorker::Store { number, batch, page } => {
                let (bytes, failure) = match self.write(batch, &page) {
                    Ok(Wrote::Bytes(bytes)) => (bytes, None),
                    Ok(Wrote::Present) => (0, None),
                    Err(error) => (0, Some(error.to_string())),
                };
                Some(FromWorker::Stored { number, bytes, failure })
            }
            ToWorker::Fetch { number, batch, pages } => Some(self.fetch(number, batch, &pages)),
            _ => None,
        }
    }

    fn write(
        &mut self,
        batch: u16,
        stored: &StoredPage,
    ) -> Result<Wrote, prompt_store::WriteError> {
        let runs = &self.runs[usize::from(batch)];
        let read = |(cache, offset_bytes)| self.view.read(cache, offset_bytes, runs.size_bytes);
        let runs: Vec<&[u8]> = runs.of_page(stored.page).map(read).collect();
        self.store.write(&page(stored), &runs)
    }

    fn fetch(&self, number: u32, batch: u16, wanted: &[StoredPage]) -> FromWorker {
        let runs = &self.runs[usize::from(batch)];
        let (mut pages, mut bytes, mut refused) = (0, 0, None);
        for (index, stored) in wanted.iter().enumerate() {
            if let Some(next) = wanted.get(index + 1) {
                self.store.prefetch(&next.name);
            }
            let write =
                |(cache, offset_bytes)| self.view.write(cache, offset_bytes, runs.size_bytes);
            let runs = runs.of_page(stored.page).map(write);
            match self.store.read(&page(stored), runs) {
                Ok(Some(read_bytes)) => bytes += read_bytes,
                Ok(None) => break,
                Err(error) => {
                    refused = Some(error.to_string());
                    break;
                }
            }
            pages += 1;
        }
        FromWorker::Fetched { number, pages, bytes, refused }
    }
}

fn page(stored: &StoredPage) -> Page<'_> {
    let StoredPage { name, before, index, ref tokens, .. } = *stored;
    Page { name, before, index, tokens }
}
