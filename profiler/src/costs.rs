//! The measured machine as the simulator's costs, for any plan of the profiled model.
//!
//! All sequences are taken to be as long as the workload says, and all batches full. An
//! instruction's work is its mean alone, interpolated over rows and KV length: a run is a sum, and
//! what interruptions add to it the medians of its parts leave out. Contention is that of the same
//! work measured beside the same lanes; where it was not measured, [`ProfileCosts::lane_rate`], the
//! average of what the lane does.
//!
//! Some costs are derived where they were not measured. Head and sampling of a large vocabulary
//! were measured on a part of it, and take their share. Copies of the outer weights take their
//! bytes at the speed of the measured blob nearest in size; sampling costs on one device what it
//! costs on the other; and a set of lanes that was not measured slows as the worst of its measured
//! parts does.

use std::collections::HashMap;

use model::ops::{Op, Value};
use program::ir::{Instruction, Program, Rows};
use program::map::Phase;
use program::plan::{Plan, RunShape};
use program::simulate::{Costs, Place};
use program::topology::{LaneId, LaneSet};
use program::weights::Weights;

use crate::key::{Extent, Key, Work};
use crate::profile::Profile;
use crate::request::{VOCABULARY_MAX, whole_prompts};
use crate::surface::Surface;

/// An instruction that was not profiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "The profile has no measurement of {what} on {lane}; profile the machine for this model, its \
     formats and its chunks."
)]
pub struct Unpriced {
    pub what: String,
    /// The lane's name.
    pub lane: String,
}

/// How long a run's sequences are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Positions of each prompt; decode step `s` (from 0) reads as many and `s` more.
    pub prompt_len: u32,
}

/// Rate beside a set of lanes.
type Rates = Vec<(LaneSet, f64)>;

#[derive(Debug, Clone, Copy)]
struct Price {
    /// Index of the surface.
    surface: usize,
    key: Key,
    phase: Phase,
    sequences: u32,
    factor: f64,
    /// What a stream of prefill computes, where prompts are cut into chunks.
    chunk: Option<Chunk>,
}

/// Costs of one plan; see the module header.
#[derive(Debug, Clone)]
pub struct ProfileCosts {
    prices: HashMap<Place, Price>,
    surfaces: Vec<Surface>,
    rates: HashMap<LaneId, Rates>,
    rates_of: HashMap<Key, Rates>,
    /// Lanes that slow others down.
    heavy: LaneSet,
    prompt_len: u32,
    wake_ns: f64,
}

impl ProfileCosts {
    /// The costs of every instruction of `plan`.
    ///
    /// # Errors
    /// The first instruction that the profile says nothing of.
    pub fn new(
        profile: &Profile,
        plan: &Plan,
        workload: Workload,
    ) -> Result<ProfileCosts, Unpriced> {
        let book = Book::of(profile);
        let mut prices = HashMap::new();
        for program in &plan.programs {
            price_program(&book, plan, program, workload.prompt_len, &mut prices)?;
        }
        let (rates, rates_of) = contention(profile);
        Ok(ProfileCosts {
            prices,
            surfaces: book.surfaces,
            rates,
            rates_of,
            heavy: plan.topology.heavy_lanes(),
            prompt_len: workload.prompt_len,
            wake_ns: profile.measurements.overhead.wake.map_or(0.0, |wake| wake.median_ns),
        })
    }

    /// The lane's average over all work that was measured both alone and beside the same lanes,
    /// each operation counting with its time.
    pub fn lane_rate(&self, lane: LaneId, busy: LaneSet) -> f64 {
        let others = busy.within(self.heavy).without(lane);
        self.rates.get(&lane).and_then(|rates| find(rates, others)).unwrap_or(1.0)
    }
}

impl ProfileCosts {
    /// A stream of prefill that cuts prompts. Of what depends on positions, a whole prompt's time
    /// is dealt out: that of attention by the positions which the rows look back at.
    fn chunk_ns(&self, price: &Price, Chunk { begin, rows, ends }: Chunk) -> f64 {
        let at = |sequences: u32, positions: u32| {
            let point = price.key.point(Phase::Prefill, Extent { sequences, positions });
            let surface = &self.surfaces[price.surface];
            surface.at(point.rows.into(), point.positions.into()).unwrap_or(0.0)
        };
        if !price.key.takes_positions() {
            return if price.key.takes_rows() { at(1, rows) } else { at(ends, self.prompt_len) };
        }
        let (mut begin, end) = (begin, begin + u64::from(rows));
        let length = u64::from(self.prompt_len.max(1));
        let share = |positions: u64| positions as f64 / length as f64;
        let mut sum_ns = 0.0;
        while begin < end {
            let first = begin % length;
            let next = length.min(first + end - begin);
            sum_ns += match price.key.work {
                Work::CopyCache { .. } => at(1, first as u32),
                Work::Append { .. } => at(1, self.prompt_len) * (share(next) - share(first)),
                _ => at(1, self.prompt_len) * (share(next).powi(2) - share(first).powi(2)),
            };
            begin += next - first;
        }
        sum_ns
    }
}

impl Costs for ProfileCosts {
    /// # Panics
    /// For an instruction of another plan.
    fn work_ns(&self, place: Place, _: &Instruction, step: u32) -> f64 {
        let price = &self.prices[&place];
        if let Some(chunk) = price.chunk {
            return price.factor * self.chunk_ns(price, chunk);
        }
        let positions = match price.phase {
            Phase::Prefill => self.prompt_len,
            Phase::Decode => self.prompt_len + step,
        };
        let point = price.key.point(price.phase, Extent { sequences: price.sequences, positions });
        let found = self.surfaces[price.surface].at(point.rows.into(), point.positions.into());
        price.factor * found.unwrap_or(0.0)
    }

    /// # Panics
    /// For an instruction of another plan.
    fn rate(&self, place: Place, busy: LaneSet) -> f64 {
        let key = &self.prices[&place].key;
        let whole = self.rates_of.get(key).or_else(|| self.rates_of.get(&without_chunk(key)));
        let others = busy.within(self.heavy).without(place.lane);
        let own = whole.and_then(|rates| find(rates, others));
        own.unwrap_or_else(|| self.lane_rate(place.lane, busy))
    }

    fn wake_ns(&self) -> f64 {
        self.wake_ns
    }
}

/// All surfaces of a profile, by key.
struct Book {
    surfaces: Vec<Surface>,
    index: HashMap<Key, usize>,
}

impl Book {
    fn of(profile: &Profile) -> Book {
        let mut points: Vec<Vec<(u32, u32, f64)>> = Vec::new();
        let mut index = HashMap::new();
        for measured in profile.measurements.work.iter().filter(|m| m.beside.is_empty()) {
            let place = *index.entry(measured.key).or_insert_with(|| {
                points.push(Vec::new());
                points.len() - 1
            });
            let (rows, positions) = (measured.point.rows, measured.point.positions);
            points[place].push((rows, positions, measured.time.mean_ns));
        }
        Book { surfaces: points.into_iter().map(Surface::of).collect(), index }
    }

    /// The surface of a key and what to multiply it by.
    fn find(&self, plan: &Plan, key: &Key) -> Option<(usize, f64)> {
        if let Some(surface) = self.index.get(key) {
            return Some((*surface, vocabulary_factor(plan, key)));
        }
        match key.work {
            Work::Compute { op: Op::Sample, .. } => {
                let other = match key.lane {
                    LaneId::CPU_COMPUTE => LaneId::GPU_COMPUTE,
                    _ => LaneId::CPU_COMPUTE,
                };
                let surface = self.index.get(&Key { lane: other, ..*key })?;
                Some((*surface, vocabulary_factor(plan, key)))
            }
            Work::CopyWeights { op: op @ (Op::Head | Op::FinalNorm), .. } => {
                self.nearest_blob(plan, key, op)
            }
            _ => None,
        }
    }

    fn nearest_blob(&self, plan: &Plan, key: &Key, op: Op) -> Option<(usize, f64)> {
        let (config, dtype) = (&plan.config, plan.shape.dtype);
        let format = plan.map.weight_formats.of(config, Weights::of(op, None));
        let bytes = op.weight_bytes_in(config, dtype, format) as f64;
        let measured = self.index.iter().filter_map(|(other, surface)| match other.work {
            Work::CopyWeights { op, weights } if other.lane == key.lane => {
                Some((op.weight_bytes_in(config, dtype, weights) as f64, *surface))
            }
            _ => None,
        });
        let distance = |other: f64| (other / bytes).ln().abs();
        let (other, surface) = measured
            .filter(|(other, _)| *other > 0.0)
            .min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)).then(a.1.cmp(&b.1)))?;
        Some((surface, bytes / other))
    }
}

/// Head, logits and sampling were measured on a part of a large vocabulary; they grow with it.
fn vocabulary_factor(plan: &Plan, key: &Key) -> f64 {
    let vocabulary = plan.config.vocab_size;
    match key.work {
        Work::Compute { op: Op::Head | Op::Sample, .. }
        | Work::CopyValue { value: Value::Logits, .. } => {
            vocabulary as f64 / vocabulary.clamp(1, VOCABULARY_MAX) as f64
        }
        _ => 1.0,
    }
}

fn price_program(
    book: &Book,
    plan: &Plan,
    program: &Program,
    prompt_len: u32,
    prices: &mut HashMap<Place, Price>,
) -> Result<(), Unpriced> {
    let (phase, shape) = (program.shape.rows.phase(), &plan.shape);
    for list in &program.lanes {
        for (index, instruction) in list.instructions.iter().enumerate() {
            let (Some(key), Some(at)) =
                (Key::of(plan, phase, list.lane, instruction), instruction.at())
            else {
                continue;
            };
            // Caches are streamed in prefill as they are in decode, where that is measured.
            let key = match key.work {
                Work::CopyCache { .. } => Key { phase: Some(Phase::Decode), ..key },
                _ => key,
            };
            let (key, of) = whole_of(program.shape.rows, key);
            let Some((surface, factor)) = book.find(plan, &key) else {
                let what = format!("{:?}", key.work).to_lowercase();
                let lane = plan.lane_name(list.lane).to_owned();
                return Err(Unpriced { what, lane });
            };
            let sequences = match phase {
                Phase::Decode => shape.batch_size,
                // The last stream may be smaller.
                Phase::Prefill => {
                    let left = shape.batch_size.saturating_sub(at.stream * shape.micro_sequences);
                    whole_prompts(shape, shape.micro_sequences.min(left))
                }
            };
            let chunk = (program.shape.rows == Rows::Chunks)
                .then(|| Chunk::of(shape, prompt_len, at.stream));
            let place = Place { program: program.id, lane: list.lane, instruction: index as u32 };
            let sequences = sequences.into();
            let factor = factor / f64::from(of);
            prices.insert(place, Price { surface, key, phase, sequences, factor, chunk });
        }
    }
    Ok(())
}

/// Attention over chunks of prompts is priced whole, and each of its equal parts with its share.
fn whole_of(rows: Rows, key: Key) -> (Key, u16) {
    match key.work {
        Work::Compute { op: Op::Attention, chunk: Some(chunk), weights, kv }
            if rows == Rows::Chunks =>
        {
            let work = Work::Compute { op: Op::Attention, chunk: None, weights, kv };
            (Key { work, ..key }, chunk.of)
        }
        _ => (key, 1),
    }
}

/// What a stream of prefill computes of a batch's prompts, one behind the other.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Rows before its first.
    begin: u64,
    rows: u32,
    /// Prompts that end in it.
    ends: u32,
}

impl Chunk {
    /// Of full batches of prompts of `prompt_len` tokens.
    fn of(shape: &RunShape, prompt_len: u32, stream: u16) -> Chunk {
        let (most, length) = (u64::from(shape.prefill_chunk), u64::from(prompt_len.max(1)));
        let all = u64::from(shape.batch_size) * length;
        let begin = all.min(u64::from(stream) * most);
        let end = all.min(begin + most);
        let ends = (end / length - begin / length) as u32;
        Chunk { begin, rows: (end - begin) as u32, ends }
    }
}

fn without_chunk(key: &Key) -> Key {
    let mut key = *key;
    match &mut key.work {
        Work::Compute { chunk, .. }
        | Work::CopyValue { chunk, .. }
        | Work::CopyCache { chunk, .. }
        | Work::Append { chunk, .. } => *chunk = None,
        Work::CopyWeights { .. } | Work::Decompress { .. } | Work::Read { .. } => {}
    }
    key
}

/// Rates of each lane, and of each kind of work, beside every set of lanes that was measured, by
/// means: where more lanes are busy than there are cores, a span has a core to itself or shares
/// one, and the median would be the one or the other.
fn contention(profile: &Profile) -> (HashMap<LaneId, Rates>, HashMap<Key, Rates>) {
    let work = &profile.measurements.work;
    let alone: HashMap<_, f64> = work
        .iter()
        .filter(|measured| measured.beside.is_empty())
        .map(|measured| ((measured.key, measured.point), measured.time.mean_ns))
        .collect();
    let mut sums: HashMap<(LaneId, LaneSet), (f64, f64)> = HashMap::new();
    let mut by_key: HashMap<Key, HashMap<LaneSet, (f64, f64)>> = HashMap::new();
    for measured in work.iter().filter(|measured| !measured.beside.is_empty()) {
        let Some(alone_ns) = alone.get(&(measured.key, measured.point)) else { continue };
        let set: LaneSet = measured.beside.iter().copied().collect();
        let of_lane = sums.entry((measured.key.lane, set)).or_default();
        let of_key = by_key.entry(measured.key).or_default().entry(set).or_default();
        for sum in [of_lane, of_key] {
            sum.0 += alone_ns;
            sum.1 += measured.time.mean_ns;
        }
    }
    let rate = |(alone_ns, beside_ns): (f64, f64)| {
        if alone_ns > 0.0 && beside_ns > 0.0 { alone_ns / beside_ns } else { 1.0 }
    };
    let mut rates: HashMap<LaneId, Rates> = HashMap::new();
    for ((lane, set), sum) in sums {
        rates.entry(lane).or_default().push((set, rate(sum)));
    }
    let by_key = by_key
        .into_iter()
        .map(|(key, sets)| (key, sets.into_iter().map(|(set, sum)| (set, rate(sum))).collect()))
        .collect();
    (rates, by_key)
}

/// The rate of a lane beside `others`, which slow it down: measured, or the worst of the measured
/// parts of the set.
fn find(rates: &Rates, others: LaneSet) -> Option<f64> {
    if others == LaneSet::EMPTY {
        return Some(1.0);
    }
    let exact = rates.iter().find(|(measured, _)| *measured == others);
    let within = |measured: LaneSet| measured.within(others) == measured;
    let parts = rates.iter().filter(|(measured, _)| within(*measured)).map(|(_, rate)| *rate);
    exact.map(|(_, rate)| *rate).or_else(|| parts.reduce(f64::min))
}
