//! Cache of experts that were read from storages: which expert each slot has, and which of them are
//! given up for others.
//!
//! Layers follow each other in a fixed order, and each of them has a turn in every step. An expert
//! is worth its expected next use, discounted by the time until then: in the layer's next turn with
//! the probability that experts of the last turn are used again, or with the expert's frequency,
//! and in each later turn with its frequency. The expert that is worth least is given up.
//!
//! All experts of a lookup are needed together. Those for which a small cache has no slot pass
//! through *working slots*, which keep nothing until the next lookup.

pub mod bound;
#[cfg(test)]
mod tests;

/// Weight of a turn in the average that estimates an expert's frequency, once the average is over
/// enough turns.
const FREQUENCY_WEIGHT: f32 = 1.0 / 256.0;
/// Weight of a turn in the average that estimates how often experts are used again.
const REPEAT_WEIGHT: f32 = 1.0 / 64.0;
/// Discount of a use in the step after the next one.
const STEP_DISCOUNT: f32 = 0.7;

/// Marks an expert without a slot.
const NO_SLOT: u32 = u32::MAX;

/// The slot of an expert that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub slot: u32,
    /// The expert is not in the slot yet.
    pub is_missing: bool,
}

/// Uses of an expert so far.
#[derive(Debug, Clone, Copy)]
struct Usage {
    /// Estimated share of the layer's turns in which it is used.
    frequency: f32,
    /// The layer's turn in which it was last used, from 1; 0 if it never was.
    last_turn: u32,
    slot: u32,
}

/// A layer's turns so far.
#[derive(Debug, Clone, Copy)]
struct Turns {
    count: u32,
    /// Estimated probability that an expert of a turn is used in the next turn.
    repeat: f32,
}

/// Sizes of a cache, and of the model whose experts it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertCacheSizes {
    /// Number of slots that keep experts for later lookups. The first of them have the pinned
    /// experts.
    pub kept: usize,
    /// Number of slots with the working slots, which follow.
    pub slots: usize,
    pub layers: usize,
    /// Number of experts of a layer.
    pub experts: usize,
    /// Number of experts to which a row is routed.
    pub per_token: usize,
}

/// State of the cache.
#[derive(Debug, Clone)]
pub struct ExpertCache {
    experts: usize,
    kept: usize,
    /// Number of slots whose experts are never given up.
    pinned: usize,
    turns: Vec<Turns>,
    /// By layer and expert.
    usage: Vec<Usage>,
    /// Expert that each slot has, as an index into `usage`, and the lookup that last needed it.
    owners: Vec<(Option<u32>, u64)>,
    /// Slots that may be given up in this lookup, with what their experts are worth.
    candidates: Vec<(f32, u32)>,
    /// Discount of a use by the number of lookups until then.
    discounts: Vec<f32>,
    lookups: u64,
}

impl ExpertCache {
    /// Creates an empty cache.
    pub fn new(sizes: ExpertCacheSizes) -> ExpertCache {
        let ExpertCacheSizes { kept, slots, layers, experts, per_token } = sizes;
        let even = per_token as f32 / experts.max(1) as f32;
        let unused = Usage { frequency: even, last_turn: 0, slot: NO_SLOT };
        ExpertCache {
            experts,
            kept: kept.min(slots),
            pinned: 0,
            turns: vec![Turns { count: 0, repeat: even }; layers],
            usage: vec![unused; layers * experts],
            owners: vec![(None, 0); slots],
            candidates: Vec::with_capacity(slots),
            discounts: (0..=layers)
                .map(|lookups| STEP_DISCOUNT.powf(lookups as f32 / layers as f32))
                .collect(),
            lookups: 0,
        }
    }

    /// Puts an expert, which is already there, into the next of the first slots for good.
    ///
    /// # Panics
    /// Panics if all slots that keep experts have a pinned one, the expert is pinned already, or
    /// there is no such expert.
    pub fn pin(&mut self, layer: usize, expert: usize) {
        assert!(self.pinned < self.kept && expert < self.experts, "a slot for expert {expert}");
        let index = layer * self.experts + expert;
        let usage = &mut self.usage[index];
        assert_eq!(usage.slot, NO_SLOT, "expert {expert} of layer {layer} is pinned once");
        usage.slot = self.pinned as u32;
        self.owners[self.pinned].0 = Some(index as u32);
        self.pinned += 1;
    }

    /// Assigns slots to the experts of `layer` to which rows are routed, given the number of rows
    /// of each expert, and writes them to `assigned`, `None` for experts without rows. The slots
    /// are kept until the next lookup. Returns the number of missing experts. Allocates nothing.
    ///
    /// # Panics
    /// Panics if there are fewer slots than needed experts, or lengths differ from the number of
    /// experts.
    pub fn assign(
        &mut self,
        layer: usize,
        rows_of: &[u32],
        assigned: &mut [Option<Assigned>],
    ) -> u32 {
        assert!(rows_of.len() == self.experts && assigned.len() == self.experts);
        self.lookups += 1;
        self.clear_working_slots();
        self.count_uses(layer, rows_of);
        let first = layer * self.experts;
        let mut missing = 0;
        for (expert, (rows, assigned)) in rows_of.iter().zip(&mut *assigned).enumerate() {
            let slot = self.usage[first + expert].slot;
            *assigned = (*rows > 0).then_some(Assigned { slot, is_missing: slot == NO_SLOT });
            match assigned {
                Some(Assigned { is_missing: true, .. }) => missing += 1,
                Some(Assigned { slot, .. }) => self.owners[*slot as usize].1 = self.lookups,
                None => {}
            }
        }
        if missing > 0 {
            self.list_candidates(layer, missing);
        }
        let mut freed = self.candidates.iter();
        for (expert, assigned) in assigned.iter_mut().enumerate() {
            let Some(Assigned { slot, is_missing: true }) = assigned else { continue };
            let Some((_, free)) = freed.next() else { break };
            *slot = *free;
            let (owner, needed) = &mut self.owners[*free as usize];
            *needed = self.lookups;
            if let Some(before) = owner.replace((first + expert) as u32) {
                self.usage[before as usize].slot = NO_SLOT;
            }
            self.usage[first + expert].slot = *free;
        }
        missing as u32
    }

    /// Forgets the experts of the last lookup that are not kept.
    fn clear_working_slots(&mut self) {
        for (owner, _) in &mut self.owners[self.kept..] {
            if let Some(before) = owner.take() {
                self.usage[before as usize].slot = NO_SLOT;
            }
        }
    }

    /// Adds a turn of a layer to the estimates.
    fn count_uses(&mut self, layer: usize, rows_of: &[u32]) {
        let Turns { count, repeat } = &mut self.turns[layer];
        let usage = &mut self.usage[layer * self.experts..][..self.experts];
        let (mut before, mut again) = (0u32, 0u32);
        let weight = FREQUENCY_WEIGHT.max(1.0 / (*count as f32 + 5.0));
        for (usage, rows) in usage.iter_mut().zip(rows_of) {
            let is_used = *rows > 0;
            if *count > 0 && usage.last_turn == *count {
                before += 1;
                again += u32::from(is_used);
            }
            let used = if is_used { 1.0 } else { 0.0 };
            usage.frequency += weight * (used - usage.frequency);
            if is_used {
                usage.last_turn = *count + 1;
            }
        }
        *count += 1;
        if before > 0 {
            let weight = REPEAT_WEIGHT.max(1.0 / *count as f32);
            *repeat += weight * (again as f32 / before as f32 - *repeat);
        }
    }

    /// Lists the slots that are not needed now, the first `count` of which are those to give up:
    /// slots that keep experts before working slots.
    fn list_candidates(&mut self, layer: usize, count: usize) {
        let layers = self.turns.len();
        let owners = (self.pinned as u32..).zip(&self.owners[self.pinned..self.kept]);
        let owners = owners.filter(|(_, (_, needed))| *needed != self.lookups);
        let worth = |owner: Option<u32>| {
            let Some(index) = owner.map(|index| index as usize) else { return f32::NEG_INFINITY };
            let Usage { frequency, last_turn, .. } = self.usage[index];
            let Turns { count, repeat } = self.turns[index / self.experts];
            let next = if last_turn == count { repeat.max(frequency) } else { frequency };
            let later = STEP_DISCOUNT * frequency / (1.0 - STEP_DISCOUNT * (1.0 - frequency));
            let lookups = (index / self.experts + layers - layer - 1) % layers + 1;
            self.discounts[lookups] * (next + (1.0 - next) * later)
        };
        self.candidates.clear();
        self.candidates.extend(owners.map(|(slot, (owner, _))| (worth(*owner), slot)));
        let by_worth = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        if count < self.candidates.len() {
            self.candidates.select_nth_unstable_by(count - 1, by_worth);
        }
        let working = self.kept as u32..self.owners.len() as u32;
        self.candidates.extend(working.map(|slot| (f32::INFINITY, slot)));
        let available = self.candidates.len();
        assert!(count <= available, "{count} experts are missing, but only {available} slots free");
    }
}
