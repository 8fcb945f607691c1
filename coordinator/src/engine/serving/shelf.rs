//! Prompt prefixes in the prompt store: which ones to store, and which may be fetched.
//!
//! The worker that owns the caches writes and reads pages concurrently with its steps; this module
//! decides which. A page of a prompt is stored once it is full, and is pinned meanwhile. Nothing
//! here waits for a file: a separate thread looks up which pages exist (`lookups.rs`).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prompt_store::{Name, OpenError, Store};
use workers::shared::protocol::{PromptsAt, StoredPage, ToWorker};

use super::caches::Caches;
use super::lookups::Lookups;
use crate::boundary::serving::SubmissionId;

/// Maximum number of pages that are written at a time; other pages are not pinned and may be
/// reused.
const SENT_MAX: usize = 8;
/// Time for which nothing is stored after a page could not be stored, and nothing is read from a
/// store that did not answer.
const PAUSE: Duration = Duration::from_secs(60);

/// A prompt whose prefix is being stored.
#[derive(Debug)]
struct Keeping {
    id: SubmissionId,
    batch: usize,
    /// Tokens of its whole pages.
    tokens: Vec<u32>,
    /// Number of pages that are stored or sent.
    done: usize,
    /// Name of the last of these pages in the store.
    name: Name,
    /// Name of its contents in memory.
    in_memory: u64,
    /// True once the sequence is not computed any more: pages that are missing will not be filled.
    is_over: bool,
}

/// A page that the worker is writing.
#[derive(Debug, Clone, Copy)]
struct Sent {
    number: u32,
    batch: usize,
    page: u32,
}

/// Index of the prompt store, and the prompts that are being stored.
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

    /// Returns the pages with which a sequence's tokens begin after the first `in_memory` ones, and
    /// which may be stored; none while the store does not answer. The last token is never included,
    /// since it must be computed to predict the next.
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

    /// Requests the number of these pages that are stored, up to the first that is not. Returns
    /// false if that cannot be looked up now.
    pub(super) fn look(&mut self, number: u32, pages: &[StoredPage]) -> bool {
        // A store that did not answer once is used again after it has answered.
        if self.silent_until.is_some() && self.lookups.is_pending() {
            return false;
        }
        let names = pages.iter().map(|page| page.name).collect();
        self.lookups.ask(number, names)
    }

    /// Returns the numbers of the lookups that were answered since the last call, with their counts
    /// of stored pages. Waits at most `wait` for the first.
    pub(super) fn found(&mut self, wait: Duration) -> Vec<(u32, usize)> {
        let found = self.lookups.found(wait);
        if !self.is_silent() && !self.lookups.is_pending() {
            self.silent_until = None;
        }
        found
    }

    /// Records that the store has not answered: nothing is stored or read for a while. Returns its
    /// folder, unless it was already known to be silent.
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

    /// Begins to store the prompt of a sequence as it is computed, if it is long enough.
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

    /// Records that a sequence is not computed any more.
    pub(super) fn end(&mut self, id: SubmissionId) {
        let of_it = self.keeping.iter_mut().filter(|keeping| keeping.id == id);
        of_it.for_each(|keeping| keeping.is_over = true);
    }

    /// Records that no sequence is computed any more.
    pub(super) fn end_all(&mut self) {
        self.keeping.iter_mut().for_each(|keeping| keeping.is_over = true);
    }

    /// Sends pages that are full by now to be stored.
    pub(super) fn send(&mut self, caches: &mut Caches, messages: &mut Vec<ToWorker>) {
        for _ in 0..self.keeping.len() {
            let Some(mut keeping) = self.keeping.pop_front() else { return };
            let goes_on = self.send_of(&mut keeping, caches, messages);
            if goes_on {
                self.keeping.push_back(keeping);
            }
        }
    }

    /// Sends the full pages of one prompt. Returns true if more of it may follow.
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
            // If the page is stored already, the worker marks it there as used.
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

    /// Records that the worker has finished with a page.
    pub(super) fn settle(&mut self, caches: &mut Caches, number: u32, failed: bool) {
        if let Some(place) = self.sent.iter().position(|sent| sent.number == number) {
            let sent = self.sent.swap_remove(place);
            caches.let_go(sent.batch, sent.page);
        }
        if failed {
            // Pages after this one are useless without it.
            self.keeping.clear();
            self.paused_until = Some(Instant::now() + PAUSE);
        }
    }

    /// Returns true if storing is paused after a failure.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns true if pages are still to be sent or written.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_silent() && (!self.sent.is_empty() || !self.keeping.is_empty())
    }

    /// Discards all pending work, since the worker is lost and the caches with it.
    pub(super) fn lose(&mut self) {
        self.keeping.clear();
        self.sent.clear();
    }
}
