//! Sequences that are not answered yet: those that wait, those in slots, and the events reported
//! for them.

mod live_sequence;
mod prefetch;
mod priority;
#[cfg(test)]
mod priority_tests;
mod prompt_progress;
mod requeue;
mod running_sequence;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::plan::Plan;
use program::step_table::{Field, SlotState};
use protocol::group::PlacedRequest;
use protocol::messages::{StoredPage, ToWorker};
use protocol::serving::{OfferedSequence, free_slot, offer_sequence, slot_state};
use protocol::table::StepTable;

use super::grammar_tracker::{GrammarStatus, GrammarTracker};
use super::kv_cache::{KvAllocation, KvCacheManager, PartialPageCopy, content_kind};
use super::prefix_cache_index::PrefixCacheIndex;
use engine_api::serving::{
    self, AnswerGrammar, DraftCounts, EngineEvent, EngineStatus, EventSink, GenerationId,
    GenerationRequest,
};

/// A sequence that is not answered yet.
struct LiveSequence {
    id: GenerationId,
    /// The request. Its grammar is the number that the workers know, and it requests
    /// log-probabilities and hidden states of the prompt only until they are reported.
    request: GenerationRequest,
    sink: Box<dyn EventSink>,
    /// New tokens, all of which were reported, except for a final end-of-sequence token.
    generated: Vec<u32>,
    queued_at: Instant,
    /// Time until the sequence got the slot in which its prompt was computed.
    queue_time: Duration,
    /// True once its prompt was computed and this was reported.
    has_started: bool,
    /// Number of prompt tokens whose keys and values were found in caches.
    cached_tokens: u32,
    /// True once the sink is gone or the sequence was cancelled.
    is_cancelled: bool,
    losses: u8,
    arrival: u32,
}

/// A sequence in a slot.
struct RunningSequence {
    sequence: LiveSequence,
    batch: usize,
    slot: usize,
    allocation: KvAllocation,
    /// True if the sequence is to leave its slot and wait again.
    is_preempted: bool,
    /// Drafts in this slot that were counted.
    drafts: DraftCounts,
}

impl RunningSequence {
    fn new(
        sequence: LiveSequence,
        batch: usize,
        slot: usize,
        allocation: KvAllocation,
    ) -> RunningSequence {
        let drafts = DraftCounts::default();
        RunningSequence { sequence, batch, slot, allocation, is_preempted: false, drafts }
    }
}

/// A sequence that has a slot and caches, into which its prefix is being fetched.
struct PrefetchingSequence {
    /// Number of the request that was made for it.
    number: u32,
    stage: PrefetchStage,
    running: RunningSequence,
}

/// Operation that is in progress before a sequence is offered.
enum PrefetchStage {
    /// A lookup of which of these pages are stored.
    LookingUp { pages: Vec<StoredPage>, since: Instant },
    /// The given number of stored pages is being read, the last of which is a checkpoint with this
    /// number, if checkpoints are needed.
    Reading { pages: u32, checkpoint: Option<u32> },
    /// A part of a page is being copied.
    Copying(PartialPageCopy),
    /// A checkpoint is being copied to the slot.
    Restoring,
}

/// Scheduler of a server: all sequences that are not answered yet. First come, first served within
/// a priority, except for sequences that wait for a grammar or for another sequence's pages.
pub(super) struct Scheduler {
    kv_cache: KvCacheManager,
    /// True if new tokens select the positions that they attend to, so that their keys and values
    /// cannot be shared.
    uses_sparse_attention: bool,
    grammars: GrammarTracker,
    /// Messages to be sent to the workers.
    messages: Vec<ToWorker>,
    /// Waiting sequences: interactive ones before those of the background, each in the order of
    /// their arrival.
    waiting: VecDeque<LiveSequence>,
    /// Sequences that have a slot and whose prefix is being fetched.
    prefetching: Vec<PrefetchingSequence>,
    /// Number of the last request for a fetch.
    last_message_id: u32,
    running: Vec<RunningSequence>,
    /// Store of prompt prefixes, if there is one.
    prefix_cache: Option<PrefixCacheIndex>,
    arrivals: u32,
}

impl Scheduler {
    pub(super) fn new(plan: &Plan, prefix_cache: Option<PrefixCacheIndex>) -> Scheduler {
        Scheduler {
            kv_cache: KvCacheManager::new(plan),
            uses_sparse_attention: plan.map.kv_select.is_some(),
            grammars: GrammarTracker::default(),
            messages: Vec::new(),
            waiting: VecDeque::new(),
            prefetching: Vec::new(),
            last_message_id: 0,
            running: Vec::new(),
            prefix_cache,
            arrivals: 0,
        }
    }

    /// Returns true if there is no sequence to be answered.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.prefetching.is_empty() && self.running.is_empty()
    }

    /// Returns true if no sequence is to be answered, although cancelled ones may still run.
    pub(super) fn has_only_cancelled(&self) -> bool {
        self.waiting.is_empty()
            && self.prefetching.is_empty()
            && self.running.iter().all(|running| running.sequence.is_cancelled)
    }

    /// Adds a sequence, which waits from now on. Fails it if its grammar is not supported.
    pub(super) fn submit(
        &mut self,
        id: GenerationId,
        mut request: GenerationRequest,
        mut sink: Box<dyn EventSink>,
    ) {
        if let AnswerGrammar::Prepared(prepared) = &request.grammar {
            if prepared.compiled.is_none() {
                // The sequence ends, whatever the sink replies.
                let _ = sink.on_event(EngineEvent::Failed(GRAMMARS_UNSUPPORTED.to_owned()));
                return;
            }
            let number = self.grammars.acquire(Arc::clone(prepared));
            request.grammar = AnswerGrammar::Number(number);
        }
        let arrival = self.arrivals;
        self.arrivals = self.arrivals.wrapping_add(1);
        self.enqueue(LiveSequence {
            id,
            request,
            sink,
            generated: Vec::new(),
            queued_at: Instant::now(),
            queue_time: Duration::ZERO,
            has_started: false,
            cached_tokens: 0,
            is_cancelled: false,
            losses: 0,
            arrival,
        });
    }

    /// Cancels a sequence, which ends within a step.
    pub(super) fn cancel(&mut self, table: Option<&StepTable>, id: GenerationId) {
        if let Some(place) = self.waiting.iter().position(|going| going.id == id) {
            let cancelled = self.waiting.remove(place);
            cancelled.into_iter().for_each(|going| self.release_grammar(&going));
        }
        self.cancel_prefetch(id);
        for running in self.running.iter_mut().filter(|running| running.sequence.id == id) {
            running.sequence.is_cancelled = true;
            if let Some(table) = table {
                table.set_field(running.batch, running.slot, Field::Cancel, 1);
            }
        }
    }

    /// Offers waiting sequences to free slots in their order, each in the batch with the fewest
    /// sequences. Background sequences leave their slots for interactive ones.
    pub(super) fn offer(&mut self, table: &StepTable, plan: &Plan) {
        let max_waiting = table.slots().count();
        self.prepare_grammars(max_waiting);
        let (mut place, mut held_back) = (0, 0);
        // Slots are kept for interactive sequences that wait for another one's pages.
        let mut keeps_slots = false;
        while place < self.waiting.len() && held_back <= max_waiting {
            if self.grammars.status(self.waiting[place].request.grammar.number())
                != GrammarStatus::Ready
            {
                place += 1;
                continue;
            }
            if keeps_slots && self.waiting[place].is_background() {
                return;
            }
            let Some((batch, slot)) = self.free_slot(table) else {
                self.preempt_background(table, None);
                return;
            };
            let batch_sequences =
                || self.sequences_in_slots().filter(|running| running.batch == batch);
            let waiting = &self.waiting[place];
            let (kind, tokens) = (content_kind(plan, &waiting.request), waiting.tokens());
            let known = &tokens[..waiting.reusable_tokens(self.uses_sparse_attention)];
            // An interactive sequence waits for no background one, whose rows are computed last.
            let precedes = |running: &&RunningSequence| {
                waiting.is_background() || !running.sequence.is_background()
            };
            if batch_sequences().filter(precedes).any(|running| {
                self.kv_cache.is_prefix_in_flight(batch, kind, known, &running.in_flight_prefill())
            }) {
                keeps_slots |= !waiting.is_background();
                (place, held_back) = (place + 1, held_back + 1);
                continue;
            }
            let growing = batch_sequences()
                .filter(|running| running.allocation.capacity < running.sequence.max_tokens());
            let growing = growing.count();
            let allocation = self.kv_cache.allocate(batch, growing, kind, known, tokens.len());
            // First come, first served: a sequence that does not fit blocks those that arrived
            // later.
            let Some(allocation) = allocation else {
                self.preempt_background(table, Some(batch));
                return;
            };
            let Some(sequence) = self.waiting.remove(place) else { return };
            self.prefetch(table, RunningSequence::new(sequence, batch, slot, allocation));
        }
    }

    /// Returns the sequences that have a slot.
    fn sequences_in_slots(&self) -> impl Iterator<Item = &RunningSequence> {
        self.running.iter().chain(self.prefetching.iter().map(|fetching| &fetching.running))
    }

    fn start(
        &mut self,
        table: &StepTable,
        batch: usize,
        slot: usize,
        mut sequence: LiveSequence,
        mut allocation: KvAllocation,
    ) {
        self.kv_cache.write_pages(table, batch, slot, &allocation);
        let max_tokens = sequence.max_tokens();
        self.kv_cache.plan_checkpoints(table, batch, slot, &mut allocation, max_tokens);
        if !sequence.has_started {
            sequence.cached_tokens = allocation.computed;
            sequence.queue_time = sequence.queued_at.elapsed();
        }
        if let Some(prefix_cache) = &mut self.prefix_cache {
            prefix_cache.start_storing(
                sequence.id,
                batch,
                allocation.kind(),
                &sequence.request.prompt,
            );
        }
        let placed = PlacedRequest { batch, slot, request: sequence.request.clone() };
        offer_sequence(
            table,
            &OfferedSequence {
                placed: &placed,
                generated: &sequence.generated,
                computed: allocation.computed,
                capacity: allocation.capacity,
                arrival: sequence.arrival,
            },
        );
        self.running.push(RunningSequence::new(sequence, batch, slot, allocation));
    }

    /// Requests the compilation of the grammars that the first `max_waiting` sequences wait for,
    /// and fails sequences whose grammar cannot be followed.
    fn prepare_grammars(&mut self, max_waiting: usize) {
        let mut place = 0;
        while place < self.waiting.len().min(max_waiting) {
            let number = self.waiting[place].request.grammar.number();
            match self.grammars.status(number) {
                GrammarStatus::NotSent => self.messages.extend(self.grammars.send(number)),
                GrammarStatus::Compiling | GrammarStatus::Ready => {}
                GrammarStatus::Failed(reason) => {
                    if let Some(mut sequence) = self.waiting.remove(place) {
                        let sentence = format!("The answer cannot have this form: {reason}.");
                        sequence.send(EngineEvent::Failed(sentence));
                        self.release_grammar(&sequence);
                    }
                    continue;
                }
            }
            place += 1;
        }
    }

    /// Takes the messages to be sent to the workers.
    pub(super) fn take_messages(&mut self) -> Vec<ToWorker> {
        std::mem::take(&mut self.messages)
    }

    /// Returns true if the worker that samples has yet to report that a grammar is ready.
    pub(super) fn is_waiting_for_grammars(&self) -> bool {
        self.grammars.is_waiting()
    }

    fn release_grammar(&mut self, sequence: &LiveSequence) {
        let number = sequence.request.grammar.number();
        if number > 0 {
            self.messages.extend(self.grammars.release(number));
        }
    }

    fn free_slot(&self, table: &StepTable) -> Option<(usize, usize)> {
        let of_batch =
            |batch| self.sequences_in_slots().filter(move |running| running.batch == batch).count();
        let is_fetching = |batch, slot| {
            self.prefetching
                .iter()
                .any(|fetching| (fetching.running.batch, fetching.running.slot) == (batch, slot))
        };
        let free = |batch: usize| {
            let is_free = |slot: &usize| {
                slot_state(table, batch, *slot) == SlotState::Free && !is_fetching(batch, *slot)
            };
            (0..table.batch_size()).find(is_free).map(|slot| (batch, slot))
        };
        let mut batches: Vec<usize> = (0..table.batches()).collect();
        batches.sort_by_key(|batch| of_batch(*batch));
        batches.into_iter().find_map(free)
    }

    /// Reports the tokens sampled since the last call, takes back the slots of sequences that have
    /// ended, and extends the caches of the others.
    pub(super) fn observe(&mut self, table: &StepTable, plan: &Plan, status: &mut EngineStatus) {
        let eos = plan.config.eos_token_ids.as_slice();
        for mut running in std::mem::take(&mut self.running) {
            // Tokens are read after the state, so that none of an ended sequence is missed.
            let has_ended = slot_state(table, running.batch, running.slot) == SlotState::Ended;
            running.send_new_tokens(table, eos, has_ended, status);
            let computed = table.field(running.batch, running.slot, Field::Computed) as usize;
            let RunningSequence { sequence, batch, slot, allocation, .. } = &mut running;
            let all_computed = computed as u32;
            // The sampler may have progressed beyond the reported tokens.
            let computed = computed.min(sequence.shareable_computed(self.uses_sparse_attention));
            let prompt = sequence.request.prompt.len();
            self.kv_cache.record_filled(*batch, allocation, computed, prompt, has_ended, || {
                sequence.tokens()
            });
            let (batch, slot, max_tokens) = (*batch, *slot, sequence.max_tokens());
            let kv_cache = &mut self.kv_cache;
            kv_cache.record_checkpoints(table, batch, slot, allocation, all_computed);
            if !has_ended {
                let computed = all_computed;
                kv_cache
                    .plan_next_checkpoints(table, batch, slot, allocation, computed, max_tokens);
            }
            if has_ended {
                self.remove_ended(table, eos, running, status);
            } else {
                self.running.push(running);
            }
        }
        self.grow(table);
        self.count_sequences(status);
        let known = self.running.iter().map(|running| running.sequence.token_count() as u64).sum();
        let slots = table.slots().count() as u64;
        (status.kv_positions, status.kv_positions_used) =
            self.kv_cache.position_counts(slots, known);
    }

    fn remove_ended(
        &mut self,
        table: &StepTable,
        eos: &[u32],
        running: RunningSequence,
        status: &mut EngineStatus,
    ) {
        let finish = running.finish_cause(table, eos);
        let RunningSequence { mut sequence, batch, slot, allocation, is_preempted, .. } = running;
        free_slot(table, batch, slot);
        self.kv_cache.release(batch, allocation);
        if let Some(prefix_cache) = &mut self.prefix_cache {
            prefix_cache.end_sequence(sequence.id);
        }
        match finish {
            // The sequence has ended only because it was preempted.
            None if is_preempted && !sequence.is_cancelled => {
                status.preemptions += 1;
                self.requeue(sequence, eos);
            }
            finish => {
                sequence.send(EngineEvent::Finished(finish.unwrap_or(serving::FinishCause::Stop)));
                self.release_grammar(&sequence);
            }
        }
    }

    /// Extends the caches of running sequences for the tokens that they sample next. If there is
    /// not enough space, the youngest sequence of the batch is preempted, background ones first.
    fn grow(&mut self, table: &StepTable) {
        let (max_drafts, drafts_all) = (table.max_drafts(), table.drafts_all());
        let mut exhausted_batches = Vec::new();
        for running in self.running.iter_mut().filter(|running| !running.is_preempted) {
            let (batch, slot) = (running.batch, running.slot);
            // The next token is computed before the caches are extended again, and so are drafts,
            // for which no other sequence has to leave.
            let known = running.sequence.token_count() as u32;
            let is_drafted = drafts_all || running.sequence.request.prediction.is_some();
            let max_drafts = if is_drafted { max_drafts } else { 0 };
            let [needed, wanted] = [2, 2 + 2 * max_drafts]
                .map(|more| (known + more).min(running.sequence.max_tokens()));
            let allocation = &mut running.allocation;
            if !self.kv_cache.grow(table, batch, slot, allocation, wanted)
                && allocation.capacity < needed
            {
                exhausted_batches.push(batch);
            }
        }
        for batch in exhausted_batches {
            let of_batch = self.running.iter_mut().filter(|running| running.batch == batch);
            let mut of_batch: Vec<&mut RunningSequence> = of_batch.collect();
            // A sequence that is leaving already releases its caches.
            if of_batch.iter().any(|running| running.is_preempted || running.sequence.is_cancelled)
            {
                continue;
            }
            let youngest = of_batch.iter_mut().max_by_key(|running| running.sequence.order());
            if let Some(youngest) = youngest {
                youngest.preempt(table);
            }
        }
    }
}

/// Failure of a sequence with a grammar if the model does not support grammars.
const GRAMMARS_UNSUPPORTED: &str = "This model's answers cannot have a form.";
