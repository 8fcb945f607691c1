//! Groups of sequences of the batch job, which are placed in the step table before their release
//! and followed while their steps run.
//!
//! If sequences are waiting, a group ends once enough of its own have ended; the others continue
//! from the caches in the next group, together with new ones.

use std::ops::Range;
use std::time::{Duration, Instant};

use engine_api::event::{BatchSink, EngineEvent, FinishCause};
use program::plan::{Plan, RunShape};
use program::step_table::{EndReason, Field};
use protocol::group::{
    GenerationRequest, PlacedRequest, continue_group, fill, fill_even, list_work, place_request,
};
use protocol::prefix_sharing::{MIN_TOKENS, share_prefixes};
use protocol::table::StepTable;
use shm::SharedU32s;

/// Position of a sequence in the step table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotAddress {
    batch: usize,
    slot: usize,
}

/// A sequence whose result has not been reported yet.
#[derive(Debug, Clone, Copy)]
struct RunningSlot {
    sequence: usize,
    place: SlotAddress,
    /// Number of tokens that were reported.
    reported_tokens: u32,
    /// Number of tokens after step 0 of this group if the sequence continues.
    tokens_after_prefill: u32,
    /// Time until it got its slot.
    queue_time: Duration,
    /// Its prompt was reported.
    has_started: bool,
    /// No more events of it are expected.
    is_closed: bool,
}

impl RunningSlot {
    fn new(sequence: usize, place: SlotAddress, queue_time: Duration) -> RunningSlot {
        RunningSlot {
            sequence,
            place,
            reported_tokens: 0,
            tokens_after_prefill: 1,
            queue_time,
            has_started: false,
            is_closed: false,
        }
    }
}

/// Work of a group's prefill.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupPrefill {
    pub(super) sequences: u64,
    /// Prompt tokens that are computed.
    pub(super) computed_tokens: u64,
    /// Prompt tokens that are computed as part of other prompts.
    pub(super) shared_tokens: u64,
}

/// The coordinator's view of the step table, for one group after the other.
#[derive(Debug)]
pub(super) struct BatchScheduler<'a> {
    table: StepTable,
    plan: &'a Plan,
    sequences: &'a [GenerationRequest],
    /// Time at which the first group began.
    begun: Instant,
    running: Vec<RunningSlot>,
    /// Number of tokens of the sequences that have ended.
    finished_tokens: u64,
    /// Number of sequences that have ended.
    finished: u64,
    /// Sequences that begin in this group; later ones are waiting.
    new_sequences: Range<usize>,
    /// True if prompts with a common prefix share its computation.
    shares_prompts: bool,
}

impl<'a> BatchScheduler<'a> {
    /// Writes the first group. Sequences are distributed evenly over the batches, so that a last,
    /// smaller group still keeps both devices busy.
    pub(super) fn start(
        words: &SharedU32s,
        plan: &'a Plan,
        sequences: &'a [GenerationRequest],
        shares_prompts: bool,
    ) -> BatchScheduler<'a> {
        let table = StepTable::new(words.clone(), plan);
        let count = sequences.len().min(table.slots().count());
        let places = assign_slots(count, &plan.shape);
        let placed = |(sequence, place): (&GenerationRequest, &SlotAddress)| {
            to_placed_request(sequence, *place)
        };
        let placed: Vec<PlacedRequest> = sequences.iter().zip(&places).map(placed).collect();
        if count < sequences.len() {
            fill_even(&table, plan, &placed);
        } else {
            fill(&table, plan, &placed);
        }
        let running = places.into_iter().enumerate();
        let running =
            running.map(|(sequence, place)| RunningSlot::new(sequence, place, Duration::ZERO));
        let groups = BatchScheduler {
            table,
            plan,
            sequences,
            begun: Instant::now(),
            running: running.collect(),
            finished_tokens: 0,
            finished: 0,
            new_sequences: 0..count,
            shares_prompts,
        };
        groups.prepare_group();
        groups
    }

    /// Writes the next group. Called after the previous one was drained and its ended sequences
    /// were reported. Returns false if no sequences remain.
    pub(super) fn start_next_group(&mut self) -> bool {
        let count = self.table.slots().count() - self.running.len();
        let next = self.new_sequences.end;
        let new_sequences = next..self.sequences.len().min(next + count);
        if new_sequences.is_empty() && self.running.is_empty() {
            return false;
        }
        continue_group(&self.table);
        for running in &mut self.running {
            running.tokens_after_prefill = running.reported_tokens;
        }
        for sequence in new_sequences.clone() {
            let at = self.free_slot();
            place_request(&self.table, &to_placed_request(&self.sequences[sequence], at));
            self.running.push(RunningSlot::new(sequence, at, self.begun.elapsed()));
        }
        self.new_sequences = new_sequences;
        self.prepare_group();
        true
    }

    /// Writes the remaining words of a group, once all its sequences are placed.
    fn prepare_group(&self) {
        if self.shares_prompts {
            share_prefixes(&self.table, MIN_TOKENS);
        }
        self.table.set_early_end_running(self.end_threshold());
    }

    /// Returns an empty slot of the batch with the fewest sequences.
    fn free_slot(&self) -> SlotAddress {
        let batches = 0..usize::from(self.plan.shape.batches);
        let of_batch = |batch: usize| self.running.iter().filter(move |r| r.place.batch == batch);
        let batch = batches.min_by_key(|batch| of_batch(*batch).count()).expect("a batch");
        let is_free = |slot: &usize| of_batch(batch).all(|running| running.place.slot != *slot);
        let slot = (0..self.table.batch_size()).find(is_free).expect("a slot is free");
        SlotAddress { batch, slot }
    }

    /// Returns the number of running sequences at which the group should end so that others can
    /// begin; 0 if it should continue until all have ended.
    fn end_threshold(&self) -> u32 {
        let (slots, waiting) = (self.running.len(), self.sequences.len() - self.new_sequences.end);
        let length = if self.finished > 0 {
            self.finished_tokens as f64 / self.finished as f64
        } else {
            let max_lengths =
                self.running.iter().map(|r| u64::from(self.sequences[r.sequence].max_new));
            max_lengths.sum::<u64>() as f64 / slots as f64
        };
        (slots - sequences_to_finish(slots, waiting, length)) as u32
    }

    /// Lists the work of prefill. Returns the decode step after which all sequences have reached
    /// their length; 0 if prefill samples the last token.
    pub(super) fn list_work(&self) -> u32 {
        list_work(&self.table)
    }

    /// Returns the work of the sequences that begin in this group.
    pub(super) fn prefill(&self) -> GroupPrefill {
        let of_slots = |tokens: &dyn Fn(usize, usize) -> u64| {
            self.table.slots().map(|(batch, slot)| tokens(batch, slot)).sum()
        };
        GroupPrefill {
            sequences: self.new_sequences.len() as u64,
            computed_tokens: of_slots(&|batch, slot| {
                self.table.field(batch, slot, Field::Fresh).into()
            }),
            shared_tokens: of_slots(&|batch, slot| {
                self.table.shared_prefix_len(batch, slot) as u64
            }),
        }
    }

    fn load(&self, place: SlotAddress, field: Field) -> u32 {
        self.table.field(place.batch, place.slot, field)
    }

    /// Reports the tokens up to `step` that were not reported yet, except for a final
    /// end-of-sequence token; with `None`, once the group is drained, all of them. The sampler may
    /// be writing later ones. A sequence of which no more events are expected ends one step later.
    /// Returns the number of new tokens.
    pub(super) fn report_new_tokens(&mut self, step: Option<u32>, sink: &mut dyn BatchSink) -> u64 {
        let mut count = 0;
        for index in 0..self.running.len() {
            let RunningSlot { place, reported_tokens, tokens_after_prefill, .. } =
                self.running[index];
            let complete = step.map_or(u32::MAX, |step| tokens_after_prefill + step);
            let generated = self.load(place, Field::Generated).min(complete);
            for position in reported_tokens as usize..generated as usize {
                let token = self.table.output(place.batch, place.slot, position);
                count += 1;
                if !self.is_end(place, token) {
                    let logprobs = self.table.logprobs(place.batch, place.slot, position);
                    let event = EngineEvent::Token { token, logprobs: logprobs.collect() };
                    self.report(index, event, sink);
                }
            }
            self.running[index].reported_tokens = generated;
        }
        count
    }

    /// Reports an event of a running sequence, preceded by that of its prompt.
    fn report(&mut self, index: usize, event: EngineEvent, sink: &mut dyn BatchSink) {
        let RunningSlot { sequence, place, queue_time, is_closed, has_started, .. } =
            self.running[index];
        if is_closed {
            return;
        }
        let prompt = (!has_started).then(|| EngineEvent::Prompt {
            cached_tokens: self.table.shared_prefix_len(place.batch, place.slot) as u32,
            queue_time,
            logprobs: Vec::new(),
        });
        let mut events = prompt.into_iter().chain([event]);
        let is_closed = events.any(|event| sink.on_event(sequence, event).is_break());
        if is_closed {
            self.table.set_field(place.batch, place.slot, Field::Cancel, 1);
        }
        let running = &mut self.running[index];
        (running.is_closed, running.has_started) = (is_closed, true);
    }

    fn is_end(&self, place: SlotAddress, token: u32) -> bool {
        let is_eos = self.plan.config.eos_token_ids.contains(&token);
        is_eos && self.load(place, Field::IgnoreEos) == 0
            || self.table.stop_tokens(place.batch, place.slot).any(|stop| stop == token)
    }

    /// Reports the ends of the sequences that had ended before `step`; with `None`, once the group
    /// is drained, of all that have ended, with their last tokens.
    ///
    /// This process has waited for the end of `step`, but the sampler may have progressed further:
    /// its current writes cannot be distinguished from those that are still to come. However, a
    /// running sequence has a token of every step up to `step`. A sequence with fewer tokens has
    /// therefore ended, and its fields were written before.
    pub(super) fn report_finished(&mut self, step: Option<u32>, sink: &mut dyn BatchSink) {
        if step.is_none() {
            self.report_new_tokens(None, sink);
        }
        let has_ended = |groups: &BatchScheduler<'_>, running: &RunningSlot| match step {
            Some(step) => {
                groups.load(running.place, Field::Generated) < running.tokens_after_prefill + step
            }
            None => !groups.table.is_running(running.place.batch, running.place.slot),
        };
        let mut index = 0;
        while let Some(running) = self.running.get(index).copied() {
            if !has_ended(self, &running) {
                index += 1;
                continue;
            }
            self.finished += 1;
            self.finished_tokens += u64::from(self.load(running.place, Field::Generated));
            let finished = EngineEvent::Finished(self.finish_cause(running.place));
            self.report(index, finished, sink);
            self.running.remove(index);
        }
    }

    /// Ends every running sequence one step later.
    pub(super) fn cancel(&self) {
        for RunningSlot { place, .. } in &self.running {
            self.table.set_field(place.batch, place.slot, Field::Cancel, 1);
        }
    }

    fn finish_cause(&self, place: SlotAddress) -> FinishCause {
        let generated = self.load(place, Field::Generated) as usize;
        let last = generated.checked_sub(1);
        let last = last.map(|last| self.table.output(place.batch, place.slot, last));
        let finish = self.load(place, Field::Finish);
        if finish == EndReason::NotFinite as u32 {
            FinishCause::NotFinite
        } else if finish == EndReason::Stop as u32
            || last.is_some_and(|token| self.is_end(place, token))
        {
            FinishCause::Stop
        } else {
            FinishCause::Length
        }
    }
}

fn to_placed_request(request: &GenerationRequest, place: SlotAddress) -> PlacedRequest {
    PlacedRequest { batch: place.batch, slot: place.slot, request: request.clone() }
}

fn assign_slots(sequences: usize, shape: &RunShape) -> Vec<SlotAddress> {
    let per_batch = sequences.div_ceil(usize::from(shape.batches)).max(1);
    assert!(per_batch <= usize::from(shape.batch_size), "a group is at most N x B sequences");
    (0..sequences).map(|i| SlotAddress { batch: i / per_batch, slot: i % per_batch }).collect()
}

/// Returns the number of `slots` running sequences that should end before others begin, if
/// `waiting` sequences are waiting and answers have `length` tokens.
///
/// Prefill of new sequences reads all weights once more, as a decode step does. A slot is free for
/// half of the time between two groups, so with `b` slots, sequences of `l` steps and groups that
/// end when `f` of them have ended, the number of steps and prefills is minimal for
/// `f = b sqrt(2 / l)`. Since lengths differ, at most three quarters of the slots are waited for,
/// so that the last quarter never delays the others.
fn sequences_to_finish(slots: usize, waiting: usize, length: f64) -> usize {
    if waiting == 0 {
        return slots;
    }
    let fewest = (slots as f64 * (2.0 / length.max(1.0)).sqrt()).ceil() as usize;
    fewest.min(waiting).clamp(1, (3 * slots / 4).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_are_followed_one_by_one_and_short_ones_together() {
        assert_eq!(sequences_to_finish(60, 100, 36.0), 15, "60 sqrt(2 / 36) = 14.1");
        assert_eq!(sequences_to_finish(16, 100, 512.0), 1);
        assert_eq!(sequences_to_finish(16, 100, 2.0), 12, "three quarters");
        assert_eq!(sequences_to_finish(16, 2, 8.0), 2, "no more than wait");
        assert_eq!(sequences_to_finish(16, 0, 8.0), 16);
        assert_eq!([sequences_to_finish(1, 5, 9.0), sequences_to_finish(2, 5, 1.0)], [1, 1]);
    }
}
