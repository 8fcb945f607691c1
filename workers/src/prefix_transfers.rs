//! Transfers of prompt prefixes between this worker's caches and the prompt store.

use std::path::Path;
use std::sync::Arc;

use program::page_runs::PageRuns;
use prompt_cache::{
    MemoryWithdrawn, PageKey, PageMemory, PageStore, PromptCacheOpenError, WriteOutcome,
};
use protocol::messages::{FromWorker, PrefixStoreConfig, StoredPage, ToWorker};

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
    transfers: Arc<PageTransferQueue>,
}

impl PrefixTransfers {
    /// Returns a value that reads and writes pages of `view` according to `transfers`.
    pub(crate) fn new(
        config: PrefixStoreConfig,
        view: View,
        runs: Vec<PageRuns>,
        transfers: Arc<PageTransferQueue>,
    ) -> PrefixTransfers {
        PrefixTransfers { config, store: None, view, runs, transfers }
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
        let PrefixTransfers { store, view, runs, transfers, .. } = self;
        let Some(store) = store else { return Ok(WriteOutcome::AlreadyPresent) };
        let mut memory =
            CachePage { view, runs: &runs[usize::from(batch)], orders: transfers, stored };
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
            let runs = &self.runs[usize::from(batch)];
            let mut memory = CachePage { view, runs, orders, stored };
            match store.read(&page(stored), &mut memory) {
                Ok(Some(read_bytes)) => (pages, bytes) = self.transfers.page_done(read_bytes),
                Ok(None) => break,
                Err(error) => refused = Some(error.to_string()),
            }
        }
        FromWorker::PagesFetched { number, pages, bytes, refused, is_silent: false }
    }
}

/// A page of the caches, valid while the order that names it is current.
struct CachePage<'a> {
    view: &'a View,
    runs: &'a PageRuns,
    orders: &'a PageTransferQueue,
    stored: &'a StoredPage,
}

impl PageMemory for CachePage<'_> {
    fn run_sizes_bytes(&self) -> Vec<usize> {
        vec![self.runs.size_bytes; self.runs.of_page(self.stored.page).count()]
    }

    fn copy_out(&mut self, run: usize, buffer: &mut [u8]) -> Result<(), MemoryWithdrawn> {
        let Some((cache, offset_bytes)) = self.runs.of_page(self.stored.page).nth(run) else {
            return Err(MemoryWithdrawn);
        };
        let copy = || buffer.copy_from_slice(self.view.read(cache, offset_bytes, buffer.len()));
        self.orders.copy(copy)
    }

    fn copy_in(&mut self, run: usize, buffer: &[u8]) -> Result<(), MemoryWithdrawn> {
        let Some((cache, offset_bytes)) = self.runs.of_page(self.stored.page).nth(run) else {
            return Err(MemoryWithdrawn);
        };
        let copy = || self.view.write(cache, offset_bytes, buffer.len()).copy_from_slice(buffer);
        self.orders.copy(copy)
    }
}

fn page(stored: &StoredPage) -> PageKey<'_> {
    let StoredPage { name, previous, index, ref tokens, .. } = *stored;
    PageKey { name, previous, index, tokens }
}
