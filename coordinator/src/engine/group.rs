//! A group of sequences in the step table: filled before release, read behind the steps.

use model::config::ModelConfig;
use program::plan::{Plan, RunShape};
use program::step_table::{Field, Finish, StepTableLayout, balance_units};
use shm::SharedU32s;

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
    words: &'a SharedU32s,
    layout: StepTableLayout,
    eos: &'a [u32],
    places: Vec<Place>,
    seen: Vec<u32>,
}

impl<'a> Group<'a> {
    /// Writes the table. Sequences are spread evenly over the batches, so that a last, smaller group
    /// still keeps both devices busy.
    pub(super) fn fill(words: &'a SharedU32s, plan: &'a Plan, sequences: &[Sequence]) -> Group<'a> {
        let places = spread(sequences.len(), &plan.shape);
        let group = Group {
            words,
            layout: plan.table,
            eos: &plan.config.eos_token_ids,
            seen: vec![0; sequences.len()],
            places,
        };
        words.fill(0);
        for (sequence, place) in sequences.iter().zip(&group.places) {
            group.write_sequence(sequence, *place);
        }
        for batch in 0..usize::from(plan.shape.batches) {
            group.write_extents(batch, &plan.config, &plan.shape);
        }
        group
    }

    /// The decode step after which all sequences have reached their length; 0 when prefill's token
    /// is the last.
    pub(super) fn last_step(sequences: &[Sequence]) -> u32 {
        sequences.iter().map(|sequence| sequence.max_new).max().unwrap_or(1).saturating_sub(1)
    }

    fn store(&self, place: Place, field: Field, value: u32) {
        self.words.store(self.layout.field(place.batch, place.slot, field), value);
    }

    fn load(&self, place: Place, field: Field) -> u32 {
        self.words.load(self.layout.field(place.batch, place.slot, field))
    }

    fn write_sequence(&self, sequence: &Sequence, place: Place) {
        let prompt = self.layout.prompt(place.batch, place.slot);
        for (i, token) in sequence.prompt.iter().enumerate() {
            self.words.store(prompt + i, *token);
        }
        let prompt_len = sequence.prompt.len() as u32;
        self.store(place, Field::PromptLen, prompt_len);
        self.store(place, Field::Remaining, sequence.max_new);
        self.store(place, Field::KvCapacity, prompt_len + sequence.max_new);
        self.store(place, Field::Temperature, sequence.temperature.to_bits());
        self.store(place, Field::TopP, sequence.top_p.to_bits());
        self.store(place, Field::SeedLow, sequence.seed as u32);
        self.store(place, Field::SeedHigh, (sequence.seed >> 32) as u32);
        self.store(place, Field::IdHashLow, sequence.id_hash as u32);
        self.store(place, Field::IdHashHigh, (sequence.id_hash >> 32) as u32);
        self.store(place, Field::IgnoreEos, u32::from(sequence.ignore_eos));
    }

    /// Extents one behind the other, and the chunks of attention balanced by their bytes.
    fn write_extents(&self, batch: usize, config: &ModelConfig, shape: &RunShape) {
        let slots = usize::from(shape.batch_size);
        let capacities: Vec<u32> =
            (0..slots).map(|slot| self.load(Place { batch, slot }, Field::KvCapacity)).collect();
        let mut start = 0;
        for (slot, capacity) in capacities.iter().enumerate() {
            self.store(Place { batch, slot }, Field::KvStart, start);
            start += capacity;
        }
        let bounds = balance_units(&capacities, config.num_kv_heads as u32, self.layout.chunks);
        for (i, bound) in bounds.iter().enumerate() {
            self.words.store(self.layout.chunk_bounds(batch) + i, *bound);
        }
    }

    /// Calls `each(sequence, token)` for every token that was not reported yet; its answer `true`
    /// ends the sequence a step later. A final EOS is not reported. Returns the number of tokens.
    pub(super) fn new_tokens(&mut self, mut each: impl FnMut(usize, u32) -> bool) -> u64 {
        let mut count = 0;
        for index in 0..self.places.len() {
            let place = self.places[index];
            let generated = self.load(place, Field::Generated);
            let output = self.layout.output(place.batch, place.slot);
            for position in self.seen[index]..generated {
                let token = self.words.load(output + position as usize);
                count += 1;
                let ends = self.eos.contains(&token) && self.load(place, Field::IgnoreEos) == 0;
                if !ends && each(index, token) {
                    self.store(place, Field::Cancel, 1);
                }
            }
            self.seen[index] = generated;
        }
        count
    }

    /// What every sequence produced, once the group is drained.
    pub(super) fn results(&self) -> Vec<Generated> {
        self.places.iter().map(|place| self.result(*place)).collect()
    }

    fn result(&self, place: Place) -> Generated {
        let output = self.layout.output(place.batch, place.slot);
        let generated = self.load(place, Field::Generated) as usize;
        let mut tokens: Vec<u32> = (0..generated).map(|i| self.words.load(output + i)).collect();
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

fn spread(sequences: usize, shape: &RunShape) -> Vec<Place> {
    let per_batch = sequences.div_ceil(usize::from(shape.batches)).max(1);
    assert!(per_batch <= usize::from(shape.batch_size), "a group is at most N x B sequences");
    (0..sequences).map(|i| Place { batch: i / per_batch, slot: i % per_batch }).collect()
}
