//! Groups of sequences of the batch job, which are placed in the step table before their release
//! and followed while their steps run.
//!
//! If sequences are waiting, a group ends once enough of its own have ended; the others continue
//! from the caches in the next group, together with new ones.

use std::ops::{ControlFlow, Range};

use program::plan::{Plan, RunShape};
use program::step_table::{Field, Finish};
use shm::SharedU32s;
use workers::shared::group::{Placed, Request, carry_on, fill, fill_even, list_work, place};
use workers::shared::prefix_sharing::{LEAST_TOKENS, share};
use workers::shared::table::StepTable;

use crate::boundary::engine;
use crate::boundary::engine::{Generated, Sequence};

/// Position of a sequence in the step table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    batch: usize,
    slot: usize,
}

/// A sequence whose result has not been reported yet.
#[derive(Debug, Clone, Copy)]
struct Running {
    sequence: usize,
    place: Place,
    /// Number of tokens that were reported.
    seen: u32,
    /// Number of tokens after step 0 of this group if the sequence continues.
    after_prefill: u32,
}

/// Work of a group's prefill.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fresh {
    pub(super) sequences: u64,
    /// Prompt tokens that are computed.
    pub(super) tokens: u64,
    /// Prompt tokens that are computed as part of other prompts.
    pub(super) shared_tokens: u64,
}

/// The coordinator's view of the step table, for one group after the other.
#[derive(Debug)]
pub(super) struct Groups<'a> {
    table: StepTable,
    plan: &'a Plan,
    sequences: &'a [Sequence<'a>],
    running: Vec<Running>,
    /// Number of tokens of the sequences that have ended.
    ended_tokens: u64,
    /// Number of sequences that have ended.
    ended: u64,
    /// Sequences that begin in this group; later ones are waiting.
    fresh: Range<usize>,
    /// True if prompts with a common prefix share its computation.
    shares: bool,
}

impl<'a> Groups<'a> {
    /// Writes the first group. Sequences are distributed evenly over the batches, so that a last,
    /// smaller group still keeps both devices busy.
    pub(super) fn begin(
        words: &SharedU32s,
        plan: &'a Plan,
        sequences: &'a [Sequence<'a>],
        shares: bool,
    ) -> Groups<'a> {
        let table = StepTable::new(words.clone(), plan);
        let count = sequences.len().min(table.slots().count());
        let places = spread(count, &plan.shape);
        let placed = |(sequence, place): (&Sequence<'_>, &Place)| placed(sequence, *place);
        let placed: Vec<Placed> = sequences.iter().zip(&places).map(placed).collect();
        if count < sequences.len() {
            fill_even(&table, plan, &placed);
        } else {
            fill(&table, plan, &placed);
        }
        let running = places.into_iter().enumerate().map(|(sequence, place)| Running {
            sequence,
            place,
            seen: 0,
            after_prefill: 1,
        });
        let groups = Groups {
            table,
            plan,
            sequences,
            running: running.collect(),
            ended_tokens: 0,
            ended: 0,
            fresh: 0..count,
            shares,
        };
        groups.release();
        groups
    }

    /// Writes the next group. Called after the previous one was drained and its ended sequences
    /// were reported. Returns false if no sequences remain.
    pub(super) fn go_on(&mut self) -> bool {
        let count = self.table.slots().count() - self.running.len();
        let next = self.fresh.end;
        let fresh = next..self.sequences.len().min(next + count);
        if fresh.is_empty() && self.running.is_empty() {
            return false;
        }
        carry_on(&self.table);
        for running in &mut self.running {
            running.after_prefill = running.seen;
        }
        for sequence in fresh.clone() {
            let at = self.free_place();
            place(&self.table, &placed(&self.sequences[sequence], at));
            self.running.push(Running { sequence, place: at, seen: 0, after_prefill: 1 });
        }
        self.fresh = fresh;
        self.release();
        true
    }

    /// Writes the remaining words of a group, once all its sequences are placed.
    fn release(&self) {
        if self.shares {
            share(&self.table, LEAST_TOKENS);
        }
        self.table.set_enough(self.enough());
    }

    /// Returns an empty slot of the batch with the fewest sequences.
    fn free_place(&self) -> Place {
        let batches = 0..usize::from(self.plan.shape.batches);
        let of_batch = |batch: usize| self.running.iter().filter(move |r| r.place.batch == batch);
        let batch = batches.min_by_key(|batch| of_batch(*batch).count()).expect("a batch");
        let is_free = |slot: &usize| of_batch(batch).all(|running| running.place.slot != *slot);
        let slot = (0..self.table.batch_size()).find(is_free).expect("a slot is free");
        Place { batch, slot }
    }

    /// Returns the number of running sequences at which the group should end so that others can
    /// begin; 0 if it should continue until all have ended.
    fn enough(&self) -> u32 {
        let (slots, waiting) = (self.running.len(), self.sequences.len() - self.fresh.end);
        let length = if self.ended > 0 {
            self.ended_tokens as f64 / self.ended as f64
        } else {
            let most = self.running.iter().map(|r| u64::from(self.sequences[r.sequence].max_new));
            most.sum::<u64>() as f64 / slots as f64
        };
        (slots - to_end(slots, waiting, length)) as u32
    }

    /// Lists the work of prefill. Returns the decode step after which all sequences have reached
    /// their length; 0 if prefill samples the last token.
    pub(super) fn list_work(&self) -> u32 {
        list_work(&self.table)
    }

    /// Returns the work of the sequences that begin in this group.
    pub(super) fn fresh(&self) -> Fresh {
        let of_slots = |tokens: &dyn Fn(usize, usize) -> u64| {
            self.table.slots().map(|(batch, slot)| tokens(batch, slot)).sum()
        };
        Fresh {
            sequences: self.fresh.len() as u64,
            tokens: of_slots(&|batch, slot| self.table.field(batch, slot, Field::Fresh).into()),
            shared_tokens: of_slots(&|batch, slot| self.table.shared(batch, slot) as u64),
        }
    }

    fn load(&self, place: Place, field: Field) -> u32 {
        self.table.field(place.batch, place.slot, field)
    }

    /// Calls `each(sequence, token)` for every token that was not reported yet; if it returns true,
    /// the sequence ends one step later. A final end-of-sequence token is counted but not reported.
    /// Returns the number of new tokens.
    pub(super) fn new_tokens(&mut self, mut each: impl FnMut(usize, u32) -> bool) -> u64 {
        let mut count = 0;
        for index in 0..self.running.len() {
            let Running { sequence, place, seen, .. } = self.running[index];
            let generated = self.load(place, Field::Generated);
            for position in seen..generated {
                let token = self.table.output(place.batch, place.slot, position as usize);
                count += 1;
                if !self.is_end(place, token) && each(sequence, token) {
                    self.table.set_field(place.batch, place.slot, Field::Cancel, 1);
                }
            }
            self.running[index].seen = generated;
        }
        count
    }

    fn is_end(&self, place: Place, token: u32) -> bool {
        self.plan.config.eos_token_ids.contains(&token) && self.load(place, Field::IgnoreEos) == 0
    }

    /// Calls `each(sequence, result)` for the sequences that had ended before `step`; with `None`,
    /// once the group is drained, for all that have ended. Returns the result of `each`, and stops
    /// when it breaks.
    ///
    /// This process has waited for the end of `step`, but the sampler may have progressed further:
    /// its current writes cannot be distinguished from those that are still to come. However, a
    /// running sequence has a token of every step up to `step`. A sequence with fewer tokens has
    /// therefore ended, and its fields were written before.
    pub(super) fn ended(
        &mut self,
        step: Option<u32>,
        mut each: impl FnMut(usize, Generated) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let has_ended = |groups: &Groups<'_>, running: &Running| match step {
            Some(step) => {
                groups.load(running.place, Field::Generated) < running.after_prefill + step
            }
            None => !groups.table.is_running(running.place.batch, running.place.slot),
        };
        let (ended, running): (Vec<Running>, Vec<Running>) =
            self.running.iter().partition(|running| has_ended(self, running));
        self.running = running;
        for Running { sequence, place, .. } in ended {
            self.ended += 1;
            self.ended_tokens += u64::from(self.load(place, Field::Generated));
            each(sequence, self.result(place))?;
        }
        ControlFlow::Continue(())
    }

    /// Ends every running sequence one step later.
    pub(super) fn cancel(&self) {
        for Running { place, .. } in &self.running {
            self.table.set_field(place.batch, place.slot, Field::Cancel, 1);
        }
    }

    fn result(&self, place: Place) -> Generated {
        let generated = self.load(place, Field::Generated) as usize;
        let output = |i| self.table.output(place.batch, place.slot, i);
        let mut tokens: Vec<u32> = (0..generated).map(output).collect();
        let finish = self.load(place, Field::Finish);
        let eos = tokens.last().is_some_and(|token| self.is_end(place, *token));
        if eos {
            tokens.pop();
        }
        let logprobs = |position| self.table.logprobs(place.batch, place.slot, position);
        let logprobs = (0..tokens.len()).flat_map(logprobs).collect();
        let finish = if finish == Finish::NotFinite as u32 {
            engine::Finish::NotFinite
        } else if finish == Finish::Stop as u32 || eos {
            engine::Finish::Stop
        } else {
            engine::Finish::Length
        };
        Generated { tokens, logprobs, prompt_logprobs: Vec::new(), finish }
    }
}

fn placed(sequence: &Sequence<'_>, place: Place) -> Placed {
    let request = Request {
        prompt: sequence.prompt.to_vec(),
        max_new: sequence.max_new,
        sampling: sequence.sampling,
        seed: sequence.seed,
        id_hash: sequence.id_hash,
        ignore_eos: sequence.ignore_eos,
        any_logits: false,
        logprobs: sequence.logprobs,
        grammar: sequence.grammar,
    };
    Placed { batch: place.batch, slot: place.slot, request }
}

fn spread(sequences: usize, shape: &RunShape) -> Vec<Place> {
    let per_batch = sequences.div_ceil(usize::from(shape.batches)).max(1);
    assert!(per_batch <= usize::from(shape.batch_size), "a group is at most N x B sequences");
    (0..sequences).map(|i| Place { batch: i / per_batch, slot: i % per_batch }).collect()
}

/// Returns the number of `slots` running sequences that should end before others begin, if
/// `waiting` sequences are waiting and answers have `length` tokens.
///
/// Prefill of new sequences reads all weights once more, as a decode step does. A slot is free for
/// half of the time between two groups, so with `b` slots, sequences of `l` steps and groups that
/// end when `f` of them have ended, the number of steps and prefills is minimal for
/// `f = b sqrt(2 / l)`. Since lengths differ, at most three quarters of the slots are waited for,
/// so that the last quarter never delays the others.
fn to_end(slots: usize, waiting: usize, length: f64) -> usize {
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
        assert_eq!(to_end(60, 100, 36.0), 15, "60 sqrt(2 / 36) = 14.1");
        assert_eq!(to_end(16, 100, 512.0), 1);
        assert_eq!(to_end(16, 100, 2.0), 12, "three quarters");
        assert_eq!(to_end(16, 2, 8.0), 2, "no more than wait");
        assert_eq!(to_end(16, 0, 8.0), 16);
        assert_eq!([to_end(1, 5, 9.0), to_end(2, 5, 1.0)], [1, 1]);
    }
}
