//! Fetching of the prefix of a sequence into its pages before it is computed: from the prompt
//! store, and from a page with the same beginning.

use std::time::{Duration, Instant};

use engine_api::serving::{EngineStatus, GenerationId};
use program::plan::Plan;
use protocol::messages::{FromWorker, StoredMemory, StoredPage, ToWorker};
use protocol::table::StepTable;

use super::{PrefetchStage, PrefetchingSequence, PrefixCacheIndex, RunningSequence, Scheduler};

/// Maximum time that this thread waits for the answer of a drive before it continues with other
/// work.
const LOOKUP_WAIT: Duration = Duration::from_millis(2);
/// Maximum time that a sequence waits for this answer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

impl Scheduler {
    /// Fetches the prefix of a sequence into its pages as far as it is found, and offers the
    /// sequence.
    pub(super) fn prefetch(&mut self, table: &StepTable, running: RunningSequence) {
        let (pages, number) = (self.lookup_candidates(&running), self.next_message_id());
        let prefix_cache = self.prefix_cache.as_mut().filter(|_| !pages.is_empty());
        let Some(prefix_cache) = prefix_cache.and_then(|prefix_cache| {
            prefix_cache.start_lookup(number, &pages).then_some(prefix_cache)
        }) else {
            self.copy_partial_page(table, running);
            return;
        };
        let stage = PrefetchStage::LookingUp { pages, since: Instant::now() };
        self.prefetching.push(PrefetchingSequence { number, stage, running });
        let found = prefix_cache.take_lookup_results(LOOKUP_WAIT);
        self.handle_lookups(table, found);
    }

    /// Continues with the sequences whose lookups were answered, and with those whose lookups take
    /// longer than [`LOOKUP_TIMEOUT`]. Returns a message for the operator of the server.
    pub(in super::super) fn poll_lookups(&mut self, table: &StepTable) -> Option<String> {
        let prefix_cache = self.prefix_cache.as_mut()?;
        let found = prefix_cache.take_lookup_results(Duration::ZERO);
        self.handle_lookups(table, found);
        let is_late = |fetching: &PrefetchingSequence| match fetching.stage {
            PrefetchStage::LookingUp { since, .. } => since.elapsed() > LOOKUP_TIMEOUT,
            PrefetchStage::Reading { .. }
            | PrefetchStage::Copying(_)
            | PrefetchStage::Restoring => false,
        };
        let mut has_late_lookup = false;
        while let Some(place) = self.prefetching.iter().position(is_late) {
            let late = self.prefetching.remove(place);
            self.copy_partial_page(table, late.running);
            has_late_lookup = true;
        }
        let prefix_cache = self.prefix_cache.as_mut().filter(|_| has_late_lookup)?;
        let seconds = LOOKUP_TIMEOUT.as_secs();
        let directory = prefix_cache.mark_unresponsive()?;
        Some(unresponsive_warning(&format!(
            "the prompt store {directory} has not answered for {seconds} s"
        )))
    }

    /// Requests the stored pages for which lookups were answered.
    fn handle_lookups(&mut self, table: &StepTable, found: Vec<(u32, usize)>) {
        for (number, count) in found {
            let is_answered = |fetching: &PrefetchingSequence| {
                fetching.number == number
                    && matches!(fetching.stage, PrefetchStage::LookingUp { .. })
            };
            let Some(place) = self.prefetching.iter().position(is_answered) else { continue };
            let PrefetchingSequence { number, stage, running } = self.prefetching.remove(place);
            let PrefetchStage::LookingUp { mut pages, .. } = stage else { continue };
            pages.truncate(count);
            let mut checkpoint = None;
            if self.kv_cache.has_checkpoints() && !pages.is_empty() {
                checkpoint = self.kv_cache.reserve_checkpoint(running.batch);
            }
            let is_usable = checkpoint.is_some() || !self.kv_cache.has_checkpoints();
            let Some(last) = pages.last().filter(|_| is_usable) else {
                self.copy_partial_page(table, running);
                continue;
            };
            let (last_name, last_index) = (last.name, last.index);
            for stored in &mut pages {
                let page = running.allocation.page(stored.index as usize);
                stored.memory = StoredMemory::Page(page);
            }
            pages.extend(
                checkpoint.map(|number| StoredPage::checkpoint(number, last_name, last_index)),
            );
            let stage = PrefetchStage::Reading { pages: pages.len() as u32, checkpoint };
            self.messages.push(ToWorker::FetchPages { number, batch: running.batch as u16, pages });
            self.prefetching.push(PrefetchingSequence { number, stage, running });
        }
    }

    /// Returns the pages after those that a sequence already has, as far as they may be stored.
    fn lookup_candidates(&self, running: &RunningSequence) -> Vec<StoredPage> {
        let Some(prefix_cache) = &self.prefix_cache else { return Vec::new() };
        let (caches, tokens) = (&running.allocation, running.sequence.tokens());
        let known = &tokens[..running.sequence.reusable_tokens(self.uses_sparse_attention)];
        prefix_cache.lookup_candidates(
            caches.kind(),
            known,
            self.kv_cache.whole_pages(caches.computed),
        )
    }

    /// Requests a copy of the positions that another page has in common with the sequence; if there
    /// are none, offers the sequence. Ends a sequence that was cancelled.
    fn copy_partial_page(&mut self, table: &StepTable, running: RunningSequence) {
        if running.sequence.is_cancelled {
            self.release(running);
            return;
        }
        if let Some(checkpoint) = running.allocation.checkpoints.restored {
            self.restore_checkpoint(checkpoint, running);
            return;
        }
        let tokens = running.sequence.tokens();
        let known = &tokens[..running.sequence.reusable_tokens(self.uses_sparse_attention)];
        let part = self.kv_cache.find_partial_page(running.batch, &running.allocation, known);
        let Some(part) = part else {
            let RunningSequence { sequence, batch, slot, allocation, .. } = running;
            self.start(table, batch, slot, sequence, allocation);
            return;
        };
        let number = self.next_message_id();
        self.messages.push(ToWorker::CopyPage {
            number,
            batch: running.batch as u16,
            from: part.source_page,
            to: part.target_page,
            positions: part.positions,
        });
        self.prefetching.push(PrefetchingSequence {
            number,
            stage: PrefetchStage::Copying(part),
            running,
        });
    }

    /// Requests a copy of the checkpoint from which a sequence begins to its slot.
    fn restore_checkpoint(&mut self, checkpoint: u32, running: RunningSequence) {
        let number = self.next_message_id();
        let (batch, slot) = (running.batch as u16, running.slot as u16);
        self.messages.push(ToWorker::RestoreCheckpoint { number, batch, checkpoint, slot });
        let stage = PrefetchStage::Restoring;
        self.prefetching.push(PrefetchingSequence { number, stage, running });
    }

    /// Ends a sequence that was not offered.
    fn release(&mut self, running: RunningSequence) {
        let RunningSequence { sequence, batch, allocation, .. } = running;
        self.kv_cache.release(batch, allocation);
        self.release_grammar(&sequence);
    }

    /// Cancels a sequence whose prefix is being fetched.
    pub(super) fn cancel_prefetch(&mut self, id: GenerationId) {
        let Some(place) =
            self.prefetching.iter().position(|fetching| fetching.running.sequence.id == id)
        else {
            return;
        };
        self.prefetching[place].running.sequence.is_cancelled = true;
        match self.prefetching[place].stage {
            PrefetchStage::LookingUp { .. } => {
                let cancelled = self.prefetching.remove(place);
                self.release(cancelled.running);
            }
            // The worker may write to its pages until it has answered.
            PrefetchStage::Reading { .. } => {
                let number = self.prefetching[place].number;
                self.messages.push(ToWorker::CancelFetch { number });
            }
            PrefetchStage::Copying(_) | PrefetchStage::Restoring => {}
        }
    }

    fn next_message_id(&mut self) -> u32 {
        self.last_message_id = self.last_message_id.wrapping_add(1);
        self.last_message_id
    }

    /// Sends full pages of prompts to be stored.
    pub(in super::super) fn send_stores(&mut self) {
        if let Some(prefix_cache) = &mut self.prefix_cache {
            prefix_cache.send_stores(&mut self.kv_cache, &mut self.messages);
        }
    }

    /// Sends full pages of prompts to be stored when nothing will be computed any more: does not
    /// wait for missing pages, nor for pages of a prompt whose prefix has just been read.
    pub(in super::super) fn flush_stores(&mut self) {
        self.prefix_cache.iter_mut().for_each(PrefixCacheIndex::end_all_sequences);
        self.send_stores();
    }

    /// Returns true if pages are still to be stored.
    pub(in super::super) fn is_storing(&self) -> bool {
        self.prefix_cache.as_ref().is_some_and(|cache| cache.is_busy())
    }

    /// Returns true if the prefix of a sequence is being fetched.
    pub(in super::super) fn is_waiting_for_pages(&self) -> bool {
        !self.prefetching.is_empty()
    }

    /// Returns true if one of these fetches is a copy in memory, which takes no longer than a
    /// message.
    pub(in super::super) fn is_waiting_for_copies(&self) -> bool {
        let is_copy = |stage: &PrefetchStage| {
            matches!(stage, PrefetchStage::Copying(_) | PrefetchStage::Restoring)
        };
        self.prefetching.iter().any(|fetching| is_copy(&fetching.stage))
    }

    /// Handles a worker's message. Returns a message for the operator of the server.
    pub(in super::super) fn handle_message(
        &mut self,
        table: &StepTable,
        plan: &Plan,
        message: FromWorker,
        status: &mut EngineStatus,
    ) -> Option<String> {
        match message {
            FromWorker::GrammarReady { number, failure } => {
                self.grammars.set_result(number, failure);
                None
            }
            FromWorker::PageStored { number, bytes, failure } => {
                let was_paused = self.prefix_cache.as_ref().is_some_and(|cache| cache.is_paused());
                if let Some(prefix_cache) = &mut self.prefix_cache {
                    prefix_cache.finish_write(&mut self.kv_cache, number, failure.is_some());
                }
                status.prompt_cache.written_bytes += bytes;
                // A cause is reported only once.
                failure
                    .filter(|_| !was_paused)
                    .map(|reason| format!("{reason}; prompts are not stored for a minute"))
            }
            FromWorker::PagesFetched { number, pages, bytes, refused, is_silent } => {
                status.prompt_cache.read_bytes += bytes;
                status.prompt_cache.unusable_pages += u64::from(refused.is_some() && !is_silent);
                let place =
                    self.prefetching.iter().position(|fetching| fetching.number == number)?;
                let PrefetchingSequence { stage, running, .. } = self.prefetching.remove(place);
                let (mut pages, mut adopted) = (pages, None);
                if let PrefetchStage::Reading { pages: all, checkpoint: Some(number) } = stage {
                    // Without its checkpoint, no page is of use.
                    if pages == all && !running.sequence.is_cancelled {
                        (pages, adopted) = (all - 1, Some(number));
                    } else {
                        self.kv_cache.cancel_checkpoint(running.batch, number);
                        pages = 0;
                    }
                }
                let positions = pages * plan.shape.page_positions;
                self.continue_fetched(table, running, positions, adopted, status);
                if is_silent {
                    let was_silent = self.prefix_cache.as_mut()?.mark_unresponsive().is_none();
                    return refused
                        .filter(|_| !was_silent)
                        .map(|reason| unresponsive_warning(&reason));
                }
                refused.map(|reason| format!("{reason}; it is computed again"))
            }
            FromWorker::PageCopied { number } => {
                let place =
                    self.prefetching.iter().position(|fetching| fetching.number == number)?;
                let PrefetchingSequence { stage, mut running, .. } = self.prefetching.remove(place);
                let PrefetchStage::Copying(part) = stage else { return None };
                self.kv_cache.unpin(running.batch, part.source_page);
                if running.sequence.is_cancelled {
                    self.release(running);
                    return None;
                }
                running.allocation.computed += part.positions;
                let RunningSequence { sequence, batch, slot, allocation, .. } = running;
                self.start(table, batch, slot, sequence, allocation);
                None
            }
            FromWorker::CheckpointRestored { number } => {
                let place =
                    self.prefetching.iter().position(|fetching| fetching.number == number)?;
                let mut running = self.prefetching.remove(place).running;
                self.kv_cache.release_restored(running.batch, &mut running.allocation);
                if running.sequence.is_cancelled {
                    self.release(running);
                    return None;
                }
                let RunningSequence { sequence, batch, slot, allocation, .. } = running;
                self.start(table, batch, slot, sequence, allocation);
                None
            }
            _ => None,
        }
    }

    fn continue_fetched(
        &mut self,
        table: &StepTable,
        mut fetched: RunningSequence,
        positions: u32,
        checkpoint: Option<u32>,
        status: &mut EngineStatus,
    ) {
        if !fetched.sequence.is_cancelled {
            fetched.allocation.computed += positions;
            status.prompt_cache.hits += u64::from(positions > 0);
            status.prompt_cache.tokens += u64::from(positions);
            let RunningSequence { sequence, batch, allocation, .. } = &mut fetched;
            let computed = allocation.computed as usize;
            self.kv_cache
                .record_filled(*batch, allocation, computed, 0, false, || sequence.tokens());
            if let Some(number) = checkpoint {
                self.kv_cache.adopt_checkpoint(*batch, allocation, number);
            }
        }
        self.copy_partial_page(table, fetched);
    }
}

/// Returns the message about a store that does not answer.
fn unresponsive_warning(reason: &str) -> String {
    format!("{reason}; prompts are computed, and nothing is read from it for a minute")
}
