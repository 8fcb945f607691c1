//! Fetching of the prefix of a sequence into its pages before it is computed: from the prompt
//! store, and from a page with the same beginning.

use std::time::{Duration, Instant};

use program::plan::Plan;
use workers::shared::protocol::{FromWorker, StoredPage, ToWorker};
use workers::shared::table::StepTable;

use super::{Desk, Fetching, Seated, Shelf, Stage};
use crate::boundary::serving::{Status, SubmissionId};

/// Maximum time that this thread waits for the answer of a drive before it continues with other
/// work.
const LOOK_WAIT: Duration = Duration::from_millis(2);
/// Maximum time that a sequence waits for this answer.
const LOOK_MAX: Duration = Duration::from_secs(10);

impl Desk {
    /// Fetches the prefix of a sequence into its pages as far as it is found, and offers the
    /// sequence.
    pub(super) fn bring(&mut self, table: &StepTable, seated: Seated) {
        let (pages, number) = (self.maybe_stored(&seated), self.number());
        let shelf = self.shelf.as_mut().filter(|_| !pages.is_empty());
        let Some(shelf) = shelf.and_then(|shelf| shelf.look(number, &pages).then_some(shelf))
        else {
            self.copy(table, seated);
            return;
        };
        let stage = Stage::Looking { pages, since: Instant::now() };
        self.fetching.push(Fetching { number, stage, seated });
        let found = shelf.found(LOOK_WAIT);
        self.looked(table, found);
    }

    /// Continues with the sequences whose lookups were answered, and with those whose lookups take
    /// longer than [`LOOK_MAX`]. Returns a message for the operator of the server.
    pub(in super::super) fn look(&mut self, table: &StepTable) -> Option<String> {
        let shelf = self.shelf.as_mut()?;
        let found = shelf.found(Duration::ZERO);
        self.looked(table, found);
        let is_late = |one: &Fetching| match one.stage {
            Stage::Looking { since, .. } => since.elapsed() > LOOK_MAX,
            Stage::Reading | Stage::Copying(_) => false,
        };
        let mut is_silent = false;
        while let Some(place) = self.fetching.iter().position(is_late) {
            let late = self.fetching.remove(place);
            self.copy(table, late.seated);
            is_silent = true;
        }
        let shelf = self.shelf.as_mut().filter(|_| is_silent)?;
        let seconds = LOOK_MAX.as_secs();
        let directory = shelf.be_silent()?;
        Some(silent(&format!("the prompt store {directory} has not answered for {seconds} s")))
    }

    /// Requests the stored pages for which lookups were answered.
    fn looked(&mut self, table: &StepTable, found: Vec<(u32, usize)>) {
        for (number, count) in found {
            let is_it =
                |one: &Fetching| one.number == number && matches!(one.stage, Stage::Looking { .. });
            let Some(place) = self.fetching.iter().position(is_it) else { continue };
            let Fetching { number, stage, seated } = self.fetching.remove(place);
            let Stage::Looking { mut pages, .. } = stage else { continue };
            pages.truncate(count);
            if pages.is_empty() {
                self.copy(table, seated);
                continue;
            }
            for stored in &mut pages {
                stored.page = seated.caches.page(stored.index as usize);
            }
            self.messages.push(ToWorker::Fetch { number, batch: seated.batch as u16, pages });
            self.fetching.push(Fetching { number, stage: Stage::Reading, seated });
        }
    }

    /// Returns the pages after those that a sequence already has, as far as they may be stored.
    fn maybe_stored(&self, seated: &Seated) -> Vec<StoredPage> {
        let Some(shelf) = &self.shelf else { return Vec::new() };
        let (caches, tokens) = (&seated.caches, seated.going.tokens());
        let known = &tokens[..seated.going.findable(self.selects)];
        shelf.maybe_stored(caches.kind(), known, self.caches.whole_pages(caches.computed))
    }

    /// Requests a copy of the positions that another page has in common with the sequence; if there
    /// are none, offers the sequence. Ends a sequence that was cancelled.
    fn copy(&mut self, table: &StepTable, seated: Seated) {
        if seated.going.is_left {
            self.leave(seated);
            return;
        }
        let tokens = seated.going.tokens();
        let known = &tokens[..seated.going.findable(self.selects)];
        let part = self.caches.part(seated.batch, &seated.caches, known);
        let Some(part) = part else {
            let Seated { going, batch, slot, caches, .. } = seated;
            self.seat(table, (batch, slot), going, caches);
            return;
        };
        let number = self.number();
        self.messages.push(ToWorker::CopyPage {
            number,
            batch: seated.batch as u16,
            from: part.from,
            to: part.to,
            positions: part.positions,
        });
        self.fetching.push(Fetching { number, stage: Stage::Copying(part), seated });
    }

    /// Ends a sequence that was not offered.
    fn leave(&mut self, seated: Seated) {
        let Seated { going, batch, caches, .. } = seated;
        self.caches.release(batch, caches);
        self.end(&going);
    }

    /// Cancels a sequence whose prefix is being fetched.
    pub(super) fn cancel_fetch(&mut self, id: SubmissionId) {
        let Some(place) = self.fetching.iter().position(|one| one.seated.going.id == id) else {
            return;
        };
        self.fetching[place].seated.going.is_left = true;
        match self.fetching[place].stage {
            Stage::Looking { .. } => {
                let left = self.fetching.remove(place);
                self.leave(left.seated);
            }
            // The worker may write to its pages until it has answered.
            Stage::Reading => {
                let number = self.fetching[place].number;
                self.messages.push(ToWorker::GiveUp { number });
            }
            Stage::Copying(_) => {}
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }

    /// Sends full pages of prompts to be stored.
    pub(in super::super) fn store(&mut self) {
        if let Some(shelf) = &mut self.shelf {
            shelf.send(&mut self.caches, &mut self.messages);
        }
    }

    /// Sends full pages of prompts to be stored when nothing will be computed any more: does not
    /// wait for missing pages, nor for pages of a prompt whose prefix has just been read.
    pub(in super::super) fn store_rest(&mut self) {
        self.shelf.iter_mut().for_each(Shelf::end_all);
        self.store();
    }

    /// Returns true if pages are still to be stored.
    pub(in super::super) fn is_storing(&self) -> bool {
        self.shelf.as_ref().is_some_and(|shelf| shelf.is_busy())
    }

    /// Returns true if the prefix of a sequence is being fetched.
    pub(in super::super) fn waits_for_pages(&self) -> bool {
        !self.fetching.is_empty()
    }

    /// Returns true if one of these fetches is a copy in memory, which takes no longer than a
    /// message.
    pub(in super::super) fn waits_for_copies(&self) -> bool {
        self.fetching.iter().any(|one| matches!(one.stage, Stage::Copying(_)))
    }

    /// Handles a worker's message. Returns a message for the operator of the server.
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
                // A cause is reported only once.
                failure
                    .filter(|_| !was_paused)
                    .map(|reason| format!("{reason}; prompts are not stored for a minute"))
            }
            FromWorker::Fetched { number, pages, bytes, refused, is_silent } => {
                status.store.read_bytes += bytes;
                status.store.refused += u64::from(refused.is_some() && !is_silent);
                let place = self.fetching.iter().position(|one| one.number == number)?;
                let fetched = self.fetching.remove(place).seated;
                self.go_on_fetched(table, fetched, (pages * plan.shape.page_positions, status));
                if is_silent {
                    let was_silent = self.shelf.as_mut()?.be_silent().is_none();
                    return refused.filter(|_| !was_silent).map(|reason| silent(&reason));
                }
                refused.map(|reason| format!("{reason}; it is computed again"))
            }
            FromWorker::Copied { number } => {
                let place = self.fetching.iter().position(|one| one.number == number)?;
                let Fetching { stage, mut seated, .. } = self.fetching.remove(place);
                let Stage::Copying(part) = stage else { return None };
                self.caches.let_go(seated.batch, part.from);
                if seated.going.is_left {
                    self.leave(seated);
                    return None;
                }
                seated.caches.computed += part.positions;
                let Seated { going, batch, slot, caches, .. } = seated;
                self.seat(table, (batch, slot), going, caches);
                None
            }
            _ => None,
        }
    }

    fn go_on_fetched(
        &mut self,
        table: &StepTable,
        mut fetched: Seated,
        (positions, status): (u32, &mut Status),
    ) {
        if !fetched.going.is_left {
            fetched.caches.computed += positions;
            status.store.hits += u64::from(positions > 0);
            status.store.tokens += u64::from(positions);
            let Seated { going, batch, caches, .. } = &mut fetched;
            let computed = caches.computed as usize;
            self.caches.fill(*batch, caches, computed, (0, false), || going.tokens());
        }
        self.copy(table, fetched);
    }
}

/// Returns the message about a store that does not answer.
fn silent(reason: &str) -> String {
    format!("{reason}; prompts are computed, and nothing is read from it for a minute")
}
