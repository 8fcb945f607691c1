//! Which beginnings of prompts are stored, and which are there to be fetched.
//!
//! The worker that keeps the caches writes and reads them beside its steps; here it is decided
//! what. A page of a prompt is stored once it is full, and nobody takes it for other positions
//! meanwhile. Nothing here waits for a file: which pages are there is found out by a thread of its
//! own (`lookups.rs`).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prompt_store::{Name, OpenError, Store};
use workers::shared::protocol::{PromptsAt, StoredPage, ToWorker};

use super::caches::Caches;
use super::lookups::Lookups;
use crate::boundary::serving::SubmissionId;

/// Pages that are being written at a time: the others stay where they are and may be taken.
const SENT_MAX: usize = 8;
/// How long nothing is stored after a page could not be, and nothing is read from a store that did
/// not answer.
const PAUSE: Duration = Duration::from_secs(60);

/// A prompt whose beginning is being stored.
#[derive(Debug)]
struct Keeping {
    id: SubmissionId,
    batch: usize,
    /// Of its whole pages.
    tokens: Vec<u32>,
    /// Pages that are stored or sent, and what the last of them is called, on the drive and in
    /// memory.
    done: usize,
    name: Name,
    in_memory: u64,
    /// Nobody computes it any more: what is not there will not come.
    is_over: bool,
}

/// A page that the worker writes.
#[derive(Debug, Clone, Copy)]
struct Sent {
    number: u32,
    batch: usize,
    page: u32,
}

/// See the module header.
#[derive(Debug)]
pub(super) struct Shelf {
    store: Arc<Store>,
    lookups: Lookups,
    directory: PathBuf,
    least_tokens: usize,
    page_positions: usize,
    keeping: VecDeque<Keeping>,
    sent: Vec<Sent>,
    numbers: u32,
    paused_until: Option<Instant>,
    silent_until: Option<Instant>,
}

impl Shelf {
    pub(super) fn open(at: &PromptsAt, page_positions: u32) -> Result<Shelf, OpenError> {
        let store = Arc::new(Store::open(&at.directory, at.origin.clone(), at.most_bytes)?);
        let lookups = Lookups::start(Arc::clone(&store));
        let failed = |source| OpenError { path: at.directory.clone(), source };
        Ok(Shelf {
            lookups: lookups.map_err(failed)?,
            store,
            directory: at.directory.clone(),
            least_tokens: at.least_tokens as usize,
            page_positions: page_positions.max(1) as usize,
            keeping: VecDeque::new(),
            sent: Vec::new(),
            numbers: 0,
            paused_until: None,
            silent_until: None,
        })
    }

    /// The pages that a sequence's tokens begin with behind `in_memory` pages, which may be stored;
    /// none while the store does not answer. The last token is computed for what follows it.
    pub(super) fn maybe_stored(
        &self,
        kind: u64,
        known: &[u32],
        in_memory: usize,
    ) -> Vec<StoredPage> {
        let whole = known.len().saturating_sub(1) / self.page_positions;
        let mut found = Vec::new();
        if whole <= in_memory || self.is_silent() {
            return found;
        }
        let mut before = self.store.first(&kind.to_le_bytes());
        let pages = known.chunks_exact(self.page_positions).take(whole);
        for (index, tokens) in pages.enumerate() {
            let name = before.next(tokens);
            if index >= in_memory {
                let (index, tokens) = (index as u32, tokens.to_vec());
                found.push(StoredPage { page: 0, name, before, index, tokens });
            }
            before = name;
        }
        found
    }

    fn number(&mut self) -> u32 {
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }

    /// Asks how many of these pages are stored, up to the first that is not; false: that cannot be
    /// found out now.
    pub(super) fn look(&mut self, number: u32, pages: &[StoredPage]) -> bool {
        // One that was silent once is asked again when it has answered.
        if self.silent_until.is_some() && self.lookups.is_pending() {
            return false;
        }
        let names = pages.iter().map(|page| page.name).collect();
        self.lookups.ask(number, names)
    }

    /// The numbers of which it was found out since, and how many pages are stored, after waiting at
    /// most so long for the first.
    pub(super) fn found(&mut self, wait: Duration) -> Vec<(u32, usize)> {
        let found = self.lookups.found(wait);
        if !self.is_silent() && !self.lookups.is_pending() {
            self.silent_until = None;
        }
        found
    }

    /// The store has not answered: nothing is stored or read for a while. Its folder, if it was
    /// not known to be silent.
    pub(super) fn be_silent(&mut self) -> Option<String> {
        let was_silent = self.is_silent();
        let until = Instant::now() + PAUSE;
        (self.paused_until, self.silent_until) = (Some(until), Some(until));
        self.keeping.clear();
        (!was_silent).then(|| self.directory.display().to_string())
    }

    fn is_silent(&self) -> bool {
        self.silent_until.is_some_and(|until| Instant::now() < until)
    }

    /// A sequence begins whose prompt is stored as it is computed, if it is long enough.
    pub(super) fn begin(&mut self, id: SubmissionId, batch: usize, kind: u64, prompt: &[u32]) {
        let whole = prompt.len() / self.page_positions * self.page_positions;
        if prompt.len() < self.least_tokens || whole == 0 || self.is_paused() {
            return;
        }
        self.end(id);
        self.keeping.push_back(Keeping {
            id,
            batch,
            tokens: prompt[..whole].to_vec(),
            done: 0,
            name: self.store.first(&kind.to_le_bytes()),
            in_memory: kind,
            is_over: false,
        });
    }

    /// A sequence is computed no more.
    pub(super) fn end(&mut self, id: SubmissionId) {
        let of_it = self.keeping.iter_mut().filter(|keeping| keeping.id == id);
        of_it.for_each(|keeping| keeping.is_over = true);
    }

    /// All of them are.
    pub(super) fn end_all(&mut self) {
        self.keeping.iter_mut().for_each(|keeping| keeping.is_over = true);
    }

    /// Sends pages to be stored that are full by now.
    pub(super) fn send(&mut self, caches: &mut Caches, messages: &mut Vec<ToWorker>) {
        for _ in 0..self.keeping.len() {
            let Some(mut keeping) = self.keeping.pop_front() else { return };
            let goes_on = self.send_of(&mut keeping, caches, messages);
            if goes_on {
                self.keeping.push_back(keeping);
            }
        }
    }

    /// The same of one prompt; whether more of it may come.
    fn send_of(
        &mut self,
        keeping: &mut Keeping,
        caches: &mut Caches,
        messages: &mut Vec<ToWorker>,
    ) -> bool {
        let positions = self.page_positions;
        while self.sent.len() < SENT_MAX {
            let from = keeping.done * positions;
            let Some(tokens) = keeping.tokens.get(from..from + positions) else { return false };
            let held = caches.follow(keeping.batch, keeping.in_memory, tokens);
            let Some((page, in_memory)) = held else { return !keeping.is_over };
            let (before, index) = (keeping.name, keeping.done as u32);
            let name = before.next(tokens);
            // Of one that is stored already the worker says there that it is used.
            caches.hold(keeping.batch, page);
            let number = self.number();
            self.sent.push(Sent { number, batch: keeping.batch, page });
            let page = StoredPage { page, name, before, index, tokens: tokens.to_vec() };
            messages.push(ToWorker::Store { number, batch: keeping.batch as u16, page });
            (keeping.name, keeping.in_memory) = (name, in_memory);
            keeping.done += 1;
        }
        true
    }

    /// The worker has done with a page.
    pub(super) fn settle(&mut self, caches: &mut Caches, number: u32, failed: bool) {
        if let Some(place) = self.sent.iter().position(|sent| sent.number == number) {
            let sent = self.sent.swap_remove(place);
            caches.let_go(sent.batch, sent.page);
        }
        if failed {
            // What follows is of no use without it.
            self.keeping.clear();
            self.paused_until = Some(Instant::now() + PAUSE);
        }
    }

    /// Whether nothing was stored for a while, since a page could not be.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the worker has yet to write something, or is to be sent it.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_silent() && (!self.sent.is_empty() || !self.keeping.is_empty())
    }

    /// The worker is gone, and the caches with it.
    pub(super) fn lose(&mut self) {
        self.keeping.clear();
        self.sent.clear();
    }
}
