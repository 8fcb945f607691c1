//! A group of sequences: placed in the step table before release, followed behind the steps.

use std::ops::ControlFlow;

use program::plan::{Plan, RunShape};
use program::step_table::{Field, Finish};
use shm::SharedU32s;
use workers::group::{Placed, Request, fill};
use workers::table::StepTable;

use crate::job::engine::{self, Generated, Sequence};

/// Where a sequence of the group stands in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    batch: usize,
    slot: usize,
}

/// The coordinator's view of the step table for one group.
#[derive(Debug)]
pub(super) struct Group<'a> {
    table: StepTable,
    eos: &'a [u32],
    places: Vec<Place>,
    seen: Vec<u32>,
    /// Sequences whose result was not told yet.
    running: Vec<usize>,
    last_step: u32,
}

impl<'a> Group<'a> {
    /// Writes the table. Sequences are spread evenly over the batches, so that a last, smaller group
    /// still keeps both devices busy.
    pub(super) fn fill(words: &SharedU32s, plan: &'a Plan, sequences: &[Sequence]) -> Group<'a> {
        let places = spread(sequences.len(), &plan.shape);
        let placed: Vec<Placed> = sequences
            .iter()
            .zip(&places)
            .map(|(sequence, place)| Placed {
                batch: place.batch,
                slot: place.slot,
                request: request(sequence),
            })
            .collect();
        let table = StepTable::new(words.clone(), plan);
        fill(&table, plan, &placed);
        Group {
            table,
            eos: &plan.config.eos_token_ids,
            seen: vec![0; sequences.len()],
            running: (0..sequences.len()).collect(),
            places,
            last_step: workers::group::last_step(&placed),
        }
    }

    /// The decode step after which all sequences have reached their length; 0 when prefill's token
    /// is the last.
    pub(super) fn last_step(&self) -> u32 {
        self.last_step
    }

    fn load(&self, place: Place, field: Field) -> u32 {
        self.table.field(place.batch, place.slot, field)
    }

    /// Calls `each(sequence, token)` for every token that was not reported yet; its answer `true`
    /// ends the sequence a step later. A final EOS is not reported. Returns the number of tokens.
    pub(super) fn new_tokens(&mut self, mut each: impl FnMut(usize, u32) -> bool) -> u64 {
        let mut count = 0;
        for index in 0..self.places.len() {
            let place = self.places[index];
            let generated = self.load(place, Field::Generated);
            for position in self.seen[index]..generated {
                let token = self.table.output(place.batch, place.slot, position as usize);
                count += 1;
                let ends = self.eos.contains(&token) && self.load(place, Field::IgnoreEos) == 0;
                if !ends && each(index, token) {
                    self.table.set_field(place.batch, place.slot, Field::Cancel, 1);
                }
            }
            self.seen[index] = generated;
        }
        count
    }

    /// Calls `each(sequence, result)` for the sequences that had ended before `step`, all of them with `None`, once
    /// the group is drained; what it says.
    ///
    /// The sampler may be further than `step`, whose end this process has waited for: nothing it writes
    /// now can be told from what it is about to write. But a sequence that runs has a token of every
    /// step up to `step`, so one with fewer has ended, and its fields were written before.
    pub(super) fn ended(
        &mut self,
        step: Option<u32>,
        mut each: impl FnMut(usize, Generated) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let has_ended = |group: &Group<'_>, sequence: usize| {
            let generated = group.load(group.places[sequence], Field::Generated);
            step.is_none_or(|step| generated <= step)
        };
        let (ended, running): (Vec<usize>, Vec<usize>) =
            self.running.iter().partition(|sequence| has_ended(self, **sequence));
        self.running = running;
        ended
            .into_iter()
            .try_for_each(|sequence| each(sequence, self.result(self.places[sequence])))
    }

    /// Ends every sequence a step later.
    pub(super) fn cancel(&self) {
        for place in &self.places {
            self.table.set_field(place.batch, place.slot, Field::Cancel, 1);
        }
    }

    fn result(&self, place: Place) -> Generated {
        let generated = self.load(place, Field::Generated) as usize;
        let output = |i| self.table.output(place.batch, place.slot, i);
        let mut tokens: Vec<u32> = (0..generated).map(output).collect();
        let stopped = self.load(place, Field::Finish) == Finish::Stop as u32;
        let eos = tokens.last().is_some_and(|token| self.eos.contains(token))
            && self.load(place, Field::IgnoreEos) == 0;
        if eos {
            tokens.pop();
        }
        let finish = if stopped || eos { engine::Finish::Stop } else { engine::Finish::Length };
        Generated { tokens, finish }
    }
}

fn request(sequence: &Sequence) -> Request {
    Request {
        prompt: sequence.prompt.clone(),
        max_new: sequence.max_new,
        temperature: sequence.temperature,
        top_p: sequence.top_p,
        seed: sequence.seed,
        id_hash: sequence.id_hash,
        ignore_eos: sequence.ignore_eos,
    }
}

fn spread(sequences: usize, shape: &RunShape) -> Vec<Place> {
    let per_batch = sequences.div_ceil(usize::from(shape.batches)).max(1);
    assert!(per_batch <= usize::from(shape.batch_size), "a group is at most N x B sequences");
    (0..sequences).map(|i| Place { batch: i / per_batch, slot: i % per_batch }).collect()
}
