//! Transfers of prompt prefixes between this worker's caches and the prompt store.

use std::path::Path;
use std::sync::Arc;

use program::checkpoints::CheckpointLayout;
use program::ir::BufferId;
use program::page_runs::PageRuns;
use prompt_cache::{
    MemoryWithdrawn, PageKey, PageMemory, PageStore, PromptCacheOpenError, WriteOutcome,
};
use protocol::messages::{FromWorker, PrefixStoreConfig, StoredMemory, StoredPage, ToWorker};

use crate::memory::View;
use crate::page_transfers::PageTransferQueue;

/// The pages of the caches, and the store. The store is opened with the first order, so that a
/// drive that does not answer does not delay the start.
#[derive(Debug)]
pub(crate) struct PrefixTransfers {
    config: PrefixStoreConfig,
    store: Option<PageStore>,
    view: View,
    /// Page runs of each batch.
    runs: Vec<PageRuns>,
    /// Checkpoints of each batch, if the plan has any.
    checkpoints: Vec<CheckpointLayout>,
    transfers: Arc<PageTransferQueue>,
}

impl PrefixTransfers {
    /// Returns a value that reads and writes pages and checkpoints of `view`, according to
    /// `transfers`.
    pub(crate) fn new(
        config: PrefixStoreConfig,
        view: View,
        runs: Vec<PageRuns>,
        checkpoints: Vec<CheckpointLayout>,
        transfers: Arc<PageTransferQueue>,
    ) -> PrefixTransfers {
        PrefixTransfers { config, store: None, view, runs, checkpoints, transfers }
    }

    /// Returns the queue of transfers.
    pub(crate) fn transfers(&self) -> &Arc<PageTransferQueue> {
        &self.transfers
    }

    /// Returns the directory of the store.
    pub(crate) fn directory(&self) -> &Path {
        &self.config.directory
    }

    /// Executes transfers for as long as the process lives.
    pub(crate) fn run(mut self) {
        loop {
            let answer = match self.transfers.next() {
                ToWorker::StorePage { number, batch, page } => {
                    let (bytes, failure) = match self.write(batch, &page) {
                        Ok(WriteOutcome::Written(bytes)) => (bytes, None),
                        Ok(WriteOutcome::AlreadyPresent) => (0, None),
                        Err(reason) => (0, Some(reason)),
                    };
                    FromWorker::PageStored { number, bytes, failure }
                }
                ToWorker::FetchPages { number, batch, pages } => self.fetch(number, batch, &pages),
                _ => continue,
            };
            self.transfers.finish(answer);
        }
    }

    /// Opens the store if it is not open yet.
    fn open(
        at: &PrefixStoreConfig,
        store: &mut Option<PageStore>,
    ) -> Result<(), PromptCacheOpenError> {
        if store.is_none() {
            *store = Some(PageStore::open(&at.directory, at.origin.clone(), at.max_bytes)?);
        }
        Ok(())
    }

    fn write(&mut self, batch: u16, stored: &StoredPage) -> Result<WriteOutcome, String> {
        PrefixTransfers::open(&self.config, &mut self.store).map_err(|error| error.to_string())?;
        let PrefixTransfers { store, view, runs, checkpoints, transfers, .. } = self;
        let Some(store) = store else { return Ok(WriteOutcome::AlreadyPresent) };
        let batch = usize::from(batch);
        let (runs, checkpoints) = (&runs[batch], checkpoints.get(batch));
        let mut memory = CachePage { view, runs, checkpoints, orders: transfers, stored };
        store.write(&page(stored), &mut memory).map_err(|error| error.to_string())
    }

    fn fetch(&mut self, number: u32, batch: u16, wanted: &[StoredPage]) -> FromWorker {
        let opened = PrefixTransfers::open(&self.config, &mut self.store);
        let (mut pages, mut bytes) = (0, 0);
        let mut refused = opened.err().map(|error| error.to_string());
        for (index, stored) in wanted.iter().enumerate() {
            let Some(store) = self.store.as_ref().filter(|_| refused.is_none()) else { break };
            if let Some(next) = wanted.get(index + 1) {
                store.prefetch(&next.name);
            }
            let (view, orders) = (&self.view, &self.transfers);
            let batch = usize::from(batch);
            let (runs, checkpoints) = (&self.runs[batch], self.checkpoints.get(batch));
            let mut memory = CachePage { view, runs, checkpoints, orders, stored };
            match store.read(&page(stored), &mut memory) {
                Ok(Some(read_bytes)) => (pages, bytes) = self.transfers.page_done(read_bytes),
                Ok(None) => break,
                Err(error) => refused = Some(error.to_string()),
            }
        }
        FromWorker::PagesFetched { number, pages, bytes, refused, is_silent: false }
    }
}

/// A page of the caches or a checkpoint, valid while the order that names it is current.
struct CachePage<'a> {
    view: &'a View,
    runs: &'a PageRuns,
    checkpoints: Option<&'a CheckpointLayout>,
    orders: &'a PageTransferQueue,
    stored: &'a StoredPage,
}

impl CachePage<'_> {
    /// Returns the buffer, the first byte and the number of bytes of a run.
    fn run(&self, run: usize) -> Result<(BufferId, usize, usize), MemoryWithdrawn> {
        let place = match self.stored.memory {
            StoredMemory::Page(page) => {
                let place = self.runs.of_page(page).nth(run);
                place.map(|run| (run.cache, run.offset_bytes, run.size_bytes))
            }
            StoredMemory::Checkpoint(number) => self.checkpoints.and_then(|layout| {
                let (cache, first) = layout.parts(number).nth(run)?;
                Some((layout.buffer, first, cache.slot_bytes))
            }),
        };
        place.ok_or(MemoryWithdrawn)
    }
}

impl PageMemory for CachePage<'_> {
    fn run_sizes_bytes(&self) -> Vec<usize> {
        match (self.stored.memory, self.checkpoints) {
            (StoredMemory::Page(page), _) => {
                self.runs.of_page(page).map(|run| run.size_bytes).collect()
            }
            (StoredMemory::Checkpoint(_), Some(layout)) => {
                layout.caches.iter().map(|cache| cache.slot_bytes).collect()
            }
            (StoredMemory::Checkpoint(_), None) => Vec::new(),
        }
    }

    fn copy_out(&mut self, run: usize, buffer: &mut [u8]) -> Result<(), MemoryWithdrawn> {
        let (cache, offset_bytes, size_bytes) = self.run(run)?;
        let copy = || buffer.copy_from_slice(self.view.read(cache, offset_bytes, size_bytes));
        self.orders.copy(copy)
    }

    fn copy_in(&mut self, run: usize, buffer: &[u8]) -> Result<(), MemoryWithdrawn> {
        let (cache, offset_bytes, size_bytes) = self.run(run)?;
        let copy = || self.view.write(cache, offset_bytes, size_bytes).copy_from_slice(buffer);
        self.orders.copy(copy)
    }
}

fn page(stored: &StoredPage) -> PageKey<'_> {
    let StoredPage { name, previous, index, ref tokens, .. } = *stored;
    PageKey { name, previous, index, tokens }
}
