//! Prompt prefixes in the prompt store: which ones to store, and which may be fetched.
//!
//! The worker that owns the caches writes and reads pages concurrently with its steps; this module
//! decides which. A page of a prompt is stored once it is full, and is pinned meanwhile; so are the
//! checkpoints at the ends of pages, if the model needs them. Nothing
//! here waits for a file: a separate thread looks up which pages exist (`store_lookups.rs`).

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_api::serving::GenerationId;
use prompt_cache::{PageHash, PageStore, PromptCacheOpenError};
use protocol::messages::{PrefixStoreConfig, StoredMemory, StoredPage, ToWorker};

use super::kv_cache::KvCacheManager;
use super::store_lookups::StoreLookups;

/// Maximum number of pages that are written at a time; other pages are not pinned and may be
/// reused.
const PENDING_WRITES_MAX: usize = 8;
/// Time for which nothing is stored after a page could not be stored, and nothing is read from a
/// store that did not answer.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// A prompt whose prefix is being stored.
#[derive(Debug)]
struct PendingStore {
    id: GenerationId,
    batch: usize,
    /// Tokens of its whole pages.
    tokens: Vec<u32>,
    /// Number of pages that are stored or sent.
    sent_pages: usize,
    /// Name of the last of these pages in the store.
    name: PageHash,
    /// Name of its contents in memory.
    last_content: u64,
    /// Those of these pages whose checkpoints are not sent.
    without_checkpoints: Vec<SentPage>,
    /// True once the sequence is not computed any more: pages that are missing will not be filled.
    is_ended: bool,
}

/// A page that was sent to be stored.
#[derive(Debug, Clone, Copy)]
struct SentPage {
    name: PageHash,
    index: u32,
    /// Name of its contents in memory.
    content: u64,
}

/// A page or a checkpoint that the worker is writing.
#[derive(Debug, Clone, Copy)]
struct PendingWrite {
    number: u32,
    batch: usize,
    memory: StoredMemory,
}

/// Index of the prompt store, and the prompts that are being stored.
#[derive(Debug)]
pub(super) struct PrefixCacheIndex {
    store: Arc<PageStore>,
    lookups: StoreLookups,
    directory: PathBuf,
    min_tokens: usize,
    page_positions: usize,
    /// True if a sequence can continue only after a page whose checkpoint is stored.
    needs_checkpoints: bool,
    pending_stores: VecDeque<PendingStore>,
    pending_writes: Vec<PendingWrite>,
    last_message_id: u32,
    paused_until: Option<Instant>,
    unresponsive_until: Option<Instant>,
}

impl PrefixCacheIndex {
    pub(super) fn open(
        at: &PrefixStoreConfig,
        page_positions: u32,
        needs_checkpoints: bool,
    ) -> Result<PrefixCacheIndex, PromptCacheOpenError> {
        let store = Arc::new(PageStore::open(&at.directory, at.origin.clone(), at.max_bytes)?);
        let lookups = StoreLookups::start(Arc::clone(&store), needs_checkpoints);
        let failed = |source| PromptCacheOpenError { path: at.directory.clone(), source };
        Ok(PrefixCacheIndex {
            lookups: lookups.map_err(failed)?,
            store,
            directory: at.directory.clone(),
            min_tokens: at.min_tokens as usize,
            page_positions: page_positions.max(1) as usize,
            needs_checkpoints,
            pending_stores: VecDeque::new(),
            pending_writes: Vec::new(),
            last_message_id: 0,
            paused_until: None,
            unresponsive_until: None,
        })
    }

    /// Returns the pages with which a sequence's tokens begin after the first `in_memory` ones, and
    /// which may be stored; none while the store does not answer. The last token is never included,
    /// since it must be computed to predict the next.
    pub(super) fn lookup_candidates(
        &self,
        kind: u64,
        known: &[u32],
        in_memory: usize,
    ) -> Vec<StoredPage> {
        let whole = known.len().saturating_sub(1) / self.page_positions;
        let mut found = Vec::new();
        if whole <= in_memory || self.is_unresponsive() {
            return found;
        }
        let mut previous = self.store.root_hash(&kind.to_le_bytes());
        let pages = known.chunks_exact(self.page_positions).take(whole);
        for (index, tokens) in pages.enumerate() {
            let name = previous.child(tokens);
            if index >= in_memory {
                let (index, tokens) = (index as u32, tokens.to_vec());
                let memory = StoredMemory::Page(0);
                found.push(StoredPage { memory, name, previous, index, tokens });
            }
            previous = name;
        }
        found
    }

    fn next_message_id(&mut self) -> u32 {
        self.last_message_id = self.last_message_id.wrapping_add(1);
        self.last_message_id
    }

    /// Requests the number of these pages that are stored, up to the first that is not, and after
    /// which a sequence can continue. Returns false if that cannot be looked up now.
    pub(super) fn start_lookup(&mut self, number: u32, pages: &[StoredPage]) -> bool {
        // A store that did not answer once is used again after it has answered.
        if self.unresponsive_until.is_some() && self.lookups.is_pending() {
            return false;
        }
        let names = pages.iter().map(|page| page.name).collect();
        self.lookups.try_start(number, names)
    }

    /// Returns the numbers of the lookups that were answered since the last call, with their counts
    /// of stored pages. Waits at most `wait` for the first.
    pub(super) fn take_lookup_results(&mut self, wait: Duration) -> Vec<(u32, usize)> {
        let found = self.lookups.take_results(wait);
        if !self.is_unresponsive() && !self.lookups.is_pending() {
            self.unresponsive_until = None;
        }
        found
    }

    /// Records that the store has not answered: nothing is stored or read for a while. Returns its
    /// folder, unless it was already known to be unresponsive.
    pub(super) fn mark_unresponsive(&mut self) -> Option<String> {
        let was_unresponsive = self.is_unresponsive();
        let until = Instant::now() + FAILURE_PAUSE;
        (self.paused_until, self.unresponsive_until) = (Some(until), Some(until));
        self.pending_stores.clear();
        (!was_unresponsive).then(|| self.directory.display().to_string())
    }

    fn is_unresponsive(&self) -> bool {
        self.unresponsive_until.is_some_and(|until| Instant::now() < until)
    }

    /// Begins to store the prompt of a sequence as it is computed, if it is long enough.
    pub(super) fn start_storing(
        &mut self,
        id: GenerationId,
        batch: usize,
        kind: u64,
        prompt: &[u32],
    ) {
        let whole_tokens = prompt.len() / self.page_positions * self.page_positions;
        if prompt.len() < self.min_tokens || whole_tokens == 0 || self.is_paused() {
            return;
        }
        self.end_sequence(id);
        self.pending_stores.push_back(PendingStore {
            id,
            batch,
            tokens: prompt[..whole_tokens].to_vec(),
            sent_pages: 0,
            name: self.store.root_hash(&kind.to_le_bytes()),
            last_content: kind,
            without_checkpoints: Vec::new(),
            is_ended: false,
        });
    }

    /// Records that a sequence is not computed any more.
    pub(super) fn end_sequence(&mut self, id: GenerationId) {
        let of_it = self.pending_stores.iter_mut().filter(|keeping| keeping.id == id);
        of_it.for_each(|keeping| keeping.is_ended = true);
    }

    /// Records that no sequence is computed any more.
    pub(super) fn end_all_sequences(&mut self) {
        self.pending_stores.iter_mut().for_each(|keeping| keeping.is_ended = true);
    }

    /// Sends pages that are full by now to be stored.
    pub(super) fn send_stores(
        &mut self,
        caches: &mut KvCacheManager,
        messages: &mut Vec<ToWorker>,
    ) {
        for _ in 0..self.pending_stores.len() {
            let Some(mut pending) = self.pending_stores.pop_front() else { return };
            let pages_follow = self.send_pages_of(&mut pending, caches, messages);
            let checkpoints_follow = self.needs_checkpoints
                && (self.send_checkpoints_of(&mut pending, caches, messages) || !pending.is_ended);
            let is_pending = pages_follow || checkpoints_follow;
            if is_pending {
                self.pending_stores.push_back(pending);
            }
        }
    }

    /// Sends the full pages of one prompt. Returns true if more of it may follow.
    fn send_pages_of(
        &mut self,
        pending: &mut PendingStore,
        caches: &mut KvCacheManager,
        messages: &mut Vec<ToWorker>,
    ) -> bool {
        let positions = self.page_positions;
        while self.pending_writes.len() < PENDING_WRITES_MAX {
            let from = pending.sent_pages * positions;
            let Some(tokens) = pending.tokens.get(from..from + positions) else { return false };
            let held = caches.page_after(pending.batch, pending.last_content, tokens);
            let Some((page, in_memory)) = held else { return !pending.is_ended };
            let (previous, index) = (pending.name, pending.sent_pages as u32);
            let name = previous.child(tokens);
            // If the page is stored already, the worker marks it there as used.
            caches.pin(pending.batch, page);
            let number = self.next_message_id();
            let memory = StoredMemory::Page(page);
            self.pending_writes.push(PendingWrite { number, batch: pending.batch, memory });
            pending.without_checkpoints.push(SentPage { name, index, content: in_memory });
            let page = StoredPage { memory, name, previous, index, tokens: tokens.to_vec() };
            messages.push(ToWorker::StorePage { number, batch: pending.batch as u16, page });
            (pending.name, pending.last_content) = (name, in_memory);
            pending.sent_pages += 1;
        }
        true
    }

    /// Sends the checkpoints that were taken at the ends of a prompt's pages. Returns true if
    /// others have to wait.
    fn send_checkpoints_of(
        &mut self,
        pending: &mut PendingStore,
        caches: &mut KvCacheManager,
        messages: &mut Vec<ToWorker>,
    ) -> bool {
        let (batch, mut place) = (pending.batch, 0);
        while let Some(SentPage { name, index, content }) =
            pending.without_checkpoints.get(place).copied()
        {
            if self.pending_writes.len() >= PENDING_WRITES_MAX {
                return true;
            }
            let Some(checkpoint) = caches.pin_checkpoint(batch, content) else {
                place += 1;
                continue;
            };
            pending.without_checkpoints.remove(place);
            let number = self.next_message_id();
            let memory = StoredMemory::Checkpoint(checkpoint);
            self.pending_writes.push(PendingWrite { number, batch, memory });
            let page = StoredPage::checkpoint(checkpoint, name, index);
            messages.push(ToWorker::StorePage { number, batch: batch as u16, page });
        }
        false
    }

    /// Records that the worker has finished with a page or a checkpoint.
    pub(super) fn finish_write(&mut self, caches: &mut KvCacheManager, number: u32, failed: bool) {
        if let Some(place) = self.pending_writes.iter().position(|sent| sent.number == number) {
            let sent = self.pending_writes.swap_remove(place);
            match sent.memory {
                StoredMemory::Page(page) => caches.unpin(sent.batch, page),
                StoredMemory::Checkpoint(number) => caches.unpin_checkpoint(sent.batch, number),
            }
        }
        if failed {
            // Pages after this one are useless without it.
            self.pending_stores.clear();
            self.paused_until = Some(Instant::now() + FAILURE_PAUSE);
        }
    }

    /// Returns true if storing is paused after a failure.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns true if pages are still to be sent or written.
    pub(super) fn is_busy(&self) -> bool {
        !self.is_unresponsive()
            && (!self.pending_writes.is_empty() || !self.pending_stores.is_empty())
    }

    /// Discards all pending work, since the worker is lost and the caches with it.
    pub(super) fn reset(&mut self) {
        self.pending_stores.clear();
        self.pending_writes.clear();
    }
}
