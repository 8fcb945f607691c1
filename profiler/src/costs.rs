//! The measured machine as the simulator's costs, for any plan of the profiled model.
//!
//! All sequences are assumed to have the length of the workload, and all batches to be full. An
//! instruction's work is its mean without contention, interpolated over rows and KV length: a run
//! is a sum, and the medians of its parts would leave out interruptions. Contention is that of the
//! same work measured concurrently with the same lanes; if that was not measured, the average of
//! the lane's work ([`ProfileCosts::lane_rate`]).
//!
//! Attention of a layer with a window is priced at that number of positions. Experts were measured
//! with rows that are routed to all of them equally often.
//!
//! A surface that does not extend to what is to be priced is an error that states what it lacks.
//!
//! Some costs are derived where they were not measured. Linears are measured whole, and a piece of
//! one takes its share, as do its weights and its columns on the link. Head and sampling of a large
//! vocabulary were measured on a part of it, and take their share. Copies of the outer weights take
//! their bytes at the speed of the measured blob nearest in size; sampling costs the same on both
//! devices; and a set of lanes that was not measured slows like its slowest measured subset.

use std::collections::HashMap;

use model::ops::{Op, Value};
use program::ir::{Copy, Instruction, Moved, Program, Rows};
use program::map::Phase;
use program::plan::Plan;
use program::simulate::{ByPlace, Place, SimulationCosts};
use program::topology::{LaneId, LaneSet};

use crate::contention::{ContentionRates, find_rate, measure_contention};
use crate::cost_table::CostTable;
use crate::key::{ProfiledWork, WorkKey};
use crate::price::{InstructionPrice, PrefillChunk};
use crate::profile::Profile;
use crate::request::whole_prompts;
use crate::surface::CostSurface;

/// Error: an instruction cannot be priced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileCostError {
    #[error(
        "The profile has no measurement of {what} on {lane}; profile the machine for this model, \
         its formats and its chunks."
    )]
    Absent {
        what: String,
        /// The lane's name.
        lane: String,
    },
    #[error(
        "The profile has {what} on {lane} at {measured} only, which is not enough to predict \
         {priced}; profile the machine again, with more time."
    )]
    Incomplete { what: String, lane: String, measured: String, priced: String },
}

/// Lengths of a run's sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLength {
    /// Positions of each prompt; decode step `s` (from 0) reads `prompt_len + s` positions.
    pub prompt_len: u32,
}

/// Costs of one plan; see the module documentation.
#[derive(Debug, Clone)]
pub struct ProfileCosts {
    prices: ByPlace<InstructionPrice>,
    surfaces: Vec<CostSurface>,
    lane_rates: HashMap<LaneId, ContentionRates>,
    work_rates: HashMap<WorkKey, ContentionRates>,
    /// Lanes that slow others down.
    heavy_lanes: LaneSet,
    prompt_len: u32,
    wake_ns: f64,
}

impl ProfileCosts {
    /// Returns the costs of every instruction of `plan`.
    ///
    /// # Errors
    /// The first instruction for which the profile lacks data.
    pub fn new(
        profile: &Profile,
        plan: &Plan,
        workload: RunLength,
    ) -> Result<ProfileCosts, ProfileCostError> {
        ProfileCosts::for_programs(profile, plan, &plan.programs, workload)
    }

    /// Returns the costs of some programs of `plan`.
    ///
    /// # Errors
    /// Fails like [`ProfileCosts::new`].
    pub fn for_programs<'a>(
        profile: &Profile,
        plan: &Plan,
        programs: impl IntoIterator<Item = &'a Program>,
        workload: RunLength,
    ) -> Result<ProfileCosts, ProfileCostError> {
        let cost_table = CostTable::from_profile(profile);
        let mut prices = ByPlace::new();
        for program in programs {
            price_program(&cost_table, plan, program, workload.prompt_len, &mut prices)?;
        }
        let (lane_rates, work_rates) = measure_contention(profile);
        Ok(ProfileCosts {
            prices,
            surfaces: cost_table.surfaces,
            lane_rates,
            work_rates,
            heavy_lanes: plan.topology.heavy_lanes(),
            prompt_len: workload.prompt_len,
            wake_ns: profile.measurements.overhead.wake.map_or(0.0, |wake| wake.median_ns),
        })
    }

    /// Returns the lane's average rate over all work that was measured both alone and concurrently
    /// with the same lanes, weighted by each operation's time.
    pub fn lane_rate(&self, lane: LaneId, busy: LaneSet) -> f64 {
        let others = busy.within(self.heavy_lanes).without(lane);
        self.lane_rates.get(&lane).and_then(|rates| find_rate(rates, others)).unwrap_or(1.0)
    }
}

impl SimulationCosts for ProfileCosts {
    /// # Panics
    /// For an instruction of another plan.
    fn work_ns(&self, place: Place, _: &Instruction, step: u32) -> f64 {
        let price = &self.prices[place];
        // `new` has checked that the surface extends to every step.
        price.ns(&self.surfaces[price.surface], self.prompt_len, step).unwrap_or_default()
    }

    /// # Panics
    /// For an instruction of another plan.
    fn rate(&self, place: Place, busy: LaneSet) -> f64 {
        let key = &self.prices[place].key;
        let whole = self.work_rates.get(key).or_else(|| self.work_rates.get(&without_chunk(key)));
        let others = busy.within(self.heavy_lanes).without(place.lane);
        let own = whole.and_then(|rates| find_rate(rates, others));
        own.unwrap_or_else(|| self.lane_rate(place.lane, busy))
    }

    fn wake_ns(&self) -> f64 {
        self.wake_ns
    }
}

fn price_program(
    cost_table: &CostTable,
    plan: &Plan,
    program: &Program,
    prompt_len: u32,
    prices: &mut ByPlace<InstructionPrice>,
) -> Result<(), ProfileCostError> {
    for list in &program.lanes {
        for (index, instruction) in list.instructions.iter().enumerate() {
            let Some(price) = price(cost_table, plan, program, list.lane, instruction, prompt_len)?
            else {
                continue;
            };
            let place = Place { program: program.id, lane: list.lane, instruction: index as u32 };
            prices.insert(place, price);
        }
    }
    Ok(())
}

/// Returns the price of an instruction; `None` if it is not work.
fn price(
    cost_table: &CostTable,
    plan: &Plan,
    program: &Program,
    lane: LaneId,
    instruction: &Instruction,
    prompt_len: u32,
) -> Result<Option<InstructionPrice>, ProfileCostError> {
    let (phase, shape) = (program.shape.rows.phase(), &plan.shape);
    let key = WorkKey::from_instruction(plan, phase, lane, instruction);
    let (Some(key), Some(at)) = (key, instruction.at()) else { return Ok(None) };
    // Caches are streamed in prefill as in decode, where this is measured.
    let key = match key.work {
        ProfiledWork::CopyCache { .. } => WorkKey { phase: Some(Phase::Decode), ..key },
        _ => key,
    };
    let (key, of) = whole_operation(program.shape.rows, key, instruction);
    let what = || format!("{:?}", key.work).to_lowercase();
    let lane = || plan.lane_name(lane).to_owned();
    let (surface, factor) = cost_table
        .find(plan, &key)
        .ok_or_else(|| ProfileCostError::Absent { what: what(), lane: lane() })?;
    let sequences = match phase {
        Phase::Decode => shape.batch_size,
        // The last stream may be smaller.
        Phase::Prefill => {
            let left = shape.batch_size.saturating_sub(at.stream * shape.micro_sequences);
            whole_prompts(shape, shape.micro_sequences.min(left))
        }
    };
    let is_chunked = program.shape.rows == Rows::Chunks;
    let price = InstructionPrice {
        surface,
        key,
        phase,
        sequences: sequences.into(),
        factor: if is_included(instruction) { 0.0 } else { factor / f64::from(of) },
        window: at
            .layer
            .and_then(|layer| plan.config.layers.kind(layer.into()).window)
            .map(|window| u32::try_from(window).unwrap_or(u32::MAX)),
        chunk: is_chunked.then(|| PrefillChunk::for_stream(shape, prompt_len, at.stream)),
    };
    // Two steps have two lengths, so a surface that extends to both extends to all.
    let reaches = |step| price.ns(&cost_table.surfaces[surface], prompt_len, step).is_some();
    if (0..shape.max_new.min(2)).all(reaches) {
        return Ok(Some(price));
    }
    let (measured, priced) = describe_gap(&cost_table.surfaces[surface], &price, prompt_len);
    Err(ProfileCostError::Incomplete { what: what(), lane: lane(), measured, priced })
}

/// Returns true if the time of an instruction is part of another operation's measurements.
fn is_included(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Compute(compute) if compute.op == Op::ExpertCombine)
}

/// Returns the points at which a surface was measured, and the point that was to be priced with it.
fn describe_gap(
    surface: &CostSurface,
    price: &InstructionPrice,
    prompt_len: u32,
) -> (String, String) {
    let (rows, positions) = surface.coordinates();
    let point = price.key.point(price.phase, price.extent(prompt_len, 1));
    let list =
        |numbers: Vec<u32>| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let measured = format!("{} rows, {} positions", list(rows), list(positions));
    (measured, format!("{} rows, {} positions", point.rows, point.positions))
}

/// Returns the key of the whole operation, and the number of equal parts: attention over chunks of
/// prompts, and a linear in pieces with its weights and values, are priced whole, and each part by
/// its share.
fn whole_operation(rows: Rows, key: WorkKey, instruction: &Instruction) -> (WorkKey, u16) {
    let pieces = match instruction {
        Instruction::Copy(Copy { moved: Moved::Weights(_), chunk, .. }) => *chunk,
        _ => None,
    };
    if let Some(pieces) = pieces {
        return (key, pieces.of);
    }
    match key.work {
        ProfiledWork::Compute { op, chunk: Some(chunk), .. } if !op.is_attention() => {
            (without_chunk(&key), chunk.of)
        }
        ProfiledWork::CopyValue { value, chunk: Some(chunk) } if !is_cut_by_units(value) => {
            (without_chunk(&key), chunk.of)
        }
        ProfiledWork::Compute { op: Op::Attention, chunk: Some(chunk), weights, kv }
            if rows == Rows::Chunks =>
        {
            let work = ProfiledWork::Compute { op: Op::Attention, chunk: None, weights, kv };
            (WorkKey { work, ..key }, chunk.of)
        }
        _ => (key, 1),
    }
}

/// Returns true if the parts of a value are units of attention, which are measured in parts.
const fn is_cut_by_units(value: Value) -> bool {
    matches!(value, Value::Scores | Value::Probabilities | Value::Attended)
}

fn without_chunk(key: &WorkKey) -> WorkKey {
    let mut key = *key;
    match &mut key.work {
        ProfiledWork::Compute { chunk, .. }
        | ProfiledWork::CopyValue { chunk, .. }
        | ProfiledWork::CopyCache { chunk, .. }
        | ProfiledWork::Append { chunk, .. } => *chunk = None,
        ProfiledWork::CopyWeights { .. }
        | ProfiledWork::Decompress { .. }
        | ProfiledWork::Read { .. } => {}
    }
    key
}
