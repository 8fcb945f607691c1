//! Sequences whose beginning comes from the prompt store before they are computed.

use program::plan::Plan;
use workers::shared::protocol::{FromWorker, StoredPage, ToWorker};
use workers::shared::table::StepTable;

use super::{Desk, Fetching, Seated, Shelf};
use crate::boundary::serving::Status;

impl Desk {
    /// Stored pages for a sequence whose caches hold `computed` positions.
    pub(super) fn stored(&self, kind: u64, known: &[u32], computed: u32) -> Vec<StoredPage> {
        let Some(shelf) = &self.shelf else { return Vec::new() };
        shelf.stored(kind, known, self.caches.whole_pages(computed))
    }

    /// Has the beginning of a sequence read into its pages.
    pub(super) fn fetch(&mut self, seated: Seated, mut pages: Vec<StoredPage>) {
        let Some(shelf) = &mut self.shelf else { return };
        let number = shelf.number();
        for stored in &mut pages {
            stored.page = seated.caches.page(stored.index as usize);
        }
        self.messages.push(ToWorker::Fetch { number, batch: seated.batch as u16, pages });
        self.fetching.push(Fetching { number, seated });
    }

    /// Has full pages of prompts stored.
    pub(in super::super) fn store(&mut self) {
        if let Some(shelf) = &mut self.shelf {
            shelf.send(&mut self.caches, &mut self.messages);
        }
    }

    /// The same where nobody will compute anything any more: nothing else is waited for, nor are
    /// pages of a prompt whose beginning has just been read.
    pub(in super::super) fn store_rest(&mut self) {
        self.shelf.iter_mut().for_each(Shelf::end_all);
        self.store();
    }

    /// Whether pages are still to be stored.
    pub(in super::super) fn is_storing(&self) -> bool {
        self.shelf.as_ref().is_some_and(|shelf| shelf.is_busy())
    }

    /// Whether the worker that keeps the caches has yet to read something.
    pub(in super::super) fn waits_for_pages(&self) -> bool {
        !self.fetching.is_empty()
    }

    /// What a worker says; a sentence for whoever runs the server.
    pub(in super::super) fn hear(
        &mut self,
        table: &StepTable,
        plan: &Plan,
        message: FromWorker,
        status: &mut Status,
    ) -> Option<String> {
        match message {
            FromWorker::FormReady { number, failure } => {
                self.forms.settle(number, failure);
                None
            }
            FromWorker::Stored { number, bytes, failure } => {
                let was_paused = self.shelf.as_ref().is_some_and(|shelf| shelf.is_paused());
                if let Some(shelf) = &mut self.shelf {
                    shelf.settle(&mut self.caches, number, failure.is_some());
                }
                status.store.written_bytes += bytes;
                // The same cause is told once.
                failure
                    .filter(|_| !was_paused)
                    .map(|reason| format!("{reason}; prompts are not stored for a minute"))
            }
            FromWorker::Fetched { number, pages, bytes, refused } => {
                let place = self.fetching.iter().position(|one| one.number == number)?;
                let fetched = self.fetching.remove(place).seated;
                status.store.read_bytes += bytes;
                status.store.refused += u64::from(refused.is_some());
                self.seat_fetched(table, plan, fetched, (pages, status));
                refused.map(|reason| format!("{reason}; it is computed again"))
            }
            _ => None,
        }
    }

    fn seat_fetched(
        &mut self,
        table: &StepTable,
        plan: &Plan,
        fetched: Seated,
        (pages, status): (u32, &mut Status),
    ) {
        let Seated { going, batch, slot, mut caches, .. } = fetched;
        if going.is_left {
            self.caches.release(batch, caches);
            self.end(&going);
            return;
        }
        let positions = pages * plan.shape.page_positions;
        caches.computed += positions;
        status.store.hits += u64::from(pages > 0);
        status.store.tokens += u64::from(positions);
        let computed = caches.computed as usize;
        self.caches.fill(batch, &mut caches, computed, || going.tokens());
        self.seat(table, (batch, slot), going, caches);
    }
}
