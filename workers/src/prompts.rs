//! Transfers of prompt prefixes between this worker's caches and the prompt store.

use std::path::Path;
use std::sync::Arc;

use program::page_runs::PageRuns;
use prompt_store::{OpenError, Page, PageMemory, Store, Withdrawn, Wrote};

use crate::memory::View;
use crate::page_orders::PageOrders;
use crate::shared::protocol::{FromWorker, PromptsAt, StoredPage, ToWorker};

/// The pages of the caches, and the store. The store is opened with the first order, so that a
/// drive that does not answer does not delay the start.
#[derive(Debug)]
pub(crate) struct Prompts {
    at: PromptsAt,
    store: Option<Store>,
    view: View,
    /// Page runs of each batch.
    runs: Vec<PageRuns>,
    orders: Arc<PageOrders>,
}

impl Prompts {
    /// Returns a value that reads and writes pages of `view` according to `orders`.
    pub(crate) fn new(
        at: PromptsAt,
        (view, runs): (View, Vec<PageRuns>),
        orders: Arc<PageOrders>,
    ) -> Prompts {
        Prompts { at, store: None, view, runs, orders }
    }

    /// Returns the queue of orders.
    pub(crate) fn orders(&self) -> &Arc<PageOrders> {
        &self.orders
    }

    /// Returns the directory of the store.
    pub(crate) fn directory(&self) -> &Path {
        &self.at.directory
    }

    /// Executes orders for as long as the process lives.
    pub(crate) fn run(mut self) {
        loop {
            let answer = match self.orders.next() {
                ToWorker::Store { number, batch, page } => {
                    let (bytes, failure) = match self.write(batch, &page) {
                        Ok(Wrote::Bytes(bytes)) => (bytes, None),
                        Ok(Wrote::Present) => (0, None),
                        Err(reason) => (0, Some(reason)),
                    };
                    FromWorker::Stored { number, bytes, failure }
                }
                ToWorker::Fetch { number, batch, pages } => self.fetch(number, batch, &pages),
                _ => continue,
            };
            self.orders.finish(answer);
        }
    }

    /// Opens the store if it is not open yet.
    fn open(at: &PromptsAt, store: &mut Option<Store>) -> Result<(), OpenError> {
        if store.is_none() {
            *store = Some(Store::open(&at.directory, at.origin.clone(), at.most_bytes)?);
        }
        Ok(())
    }

    fn write(&mut self, batch: u16, stored: &StoredPage) -> Result<Wrote, String> {
        Prompts::open(&self.at, &mut self.store).map_err(|error| error.to_string())?;
        let Prompts { store, view, runs, orders, .. } = self;
        let Some(store) = store else { return Ok(Wrote::Present) };
        let mut memory = Memory { view, runs: &runs[usize::from(batch)], orders, stored };
        store.write(&page(stored), &mut memory).map_err(|error| error.to_string())
    }

    fn fetch(&mut self, number: u32, batch: u16, wanted: &[StoredPage]) -> FromWorker {
        let opened = Prompts::open(&self.at, &mut self.store);
        let (mut pages, mut bytes) = (0, 0);
        let mut refused = opened.err().map(|error| error.to_string());
        for (index, stored) in wanted.iter().enumerate() {
            let Some(store) = self.store.as_ref().filter(|_| refused.is_none()) else { break };
            if let Some(next) = wanted.get(index + 1) {
                store.prefetch(&next.name);
            }
            let (view, orders) = (&self.view, &self.orders);
            let runs = &self.runs[usize::from(batch)];
            let mut memory = Memory { view, runs, orders, stored };
            match store.read(&page(stored), &mut memory) {
                Ok(Some(read_bytes)) => (pages, bytes) = self.orders.page_done(read_bytes),
                Ok(None) => break,
                Err(error) => refused = Some(error.to_string()),
            }
        }
        FromWorker::Fetched { number, pages, bytes, refused, is_silent: false }
    }
}

/// A page of the caches, valid while the order that names it is current.
struct Memory<'a> {
    view: &'a View,
    runs: &'a PageRuns,
    orders: &'a PageOrders,
    stored: &'a StoredPage,
}

impl PageMemory for Memory<'_> {
    fn run_sizes_bytes(&self) -> Vec<usize> {
        vec![self.runs.size_bytes; self.runs.of_page(self.stored.page).count()]
    }

    fn copy_out(&mut self, run: usize, buffer: &mut [u8]) -> Result<(), Withdrawn> {
        let Some((cache, offset_bytes)) = self.runs.of_page(self.stored.page).nth(run) else {
            return Err(Withdrawn);
        };
        let copy = || buffer.copy_from_slice(self.view.read(cache, offset_bytes, buffer.len()));
        self.orders.copy(copy)
    }

    fn copy_in(&mut self, run: usize, buffer: &[u8]) -> Result<(), Withdrawn> {
        let Some((cache, offset_bytes)) = self.runs.of_page(self.stored.page).nth(run) else {
            return Err(Withdrawn);
        };
        let copy = || self.view.write(cache, offset_bytes, buffer.len()).copy_from_slice(buffer);
        self.orders.copy(copy)
    }
}

fn page(stored: &StoredPage) -> Page<'_> {
    let StoredPage { name, before, index, ref tokens, .. } = *stored;
    Page { name, before, index, tokens }
}
