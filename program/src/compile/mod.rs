//! The compiler: device map to plan.
//!
//! Three steps, each in a file: `schedule` lists the work in one global order that respects data
//! flow (with the early copies and barriers of `barrier`, if the map asks); `emit` turns an entry into instructions, inserting copies where a value or a weight is
//! needed on the other device; `sync` splits the order into lanes and inserts the fewest waits and
//! signals that keep every pair of conflicting accesses ordered, also between consecutive steps.
//!
//! Executing the global order serially would be a correct run. Every wait points backwards in it,
//! so no compiled program can deadlock; the validator proves it again, independently.

mod barrier;
mod buffers;
mod check;
mod emit;
mod schedule;
mod sync;

use model::config::ModelConfig;

use crate::ir::{Phase, Program};
use crate::map::{Device, DeviceMap, Schedule};
use crate::plan::{Footprint, Plan, ResidentWeights, RunShape};
use crate::step_table::StepTableLayout;

use buffers::Buffers;
pub use check::CompileError;

/// Compiles a placement for a model and the maxima of a run.
///
/// # Errors
/// A map that does not fit the model, or asks for what no worker can do.
pub fn compile(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<Plan, CompileError> {
    check::check(config, shape, map)?;
    let mut buffers = Buffers::new(config, shape, map);
    let [prefill, decode] = [Phase::Prefill, Phase::Decode].map(|phase| Program {
        phase,
        lanes: sync::synchronise(emit(phase, config, shape, map, &mut buffers)),
    });
    let resident = buffers
        .resident
        .iter()
        .map(|(weights, to)| ResidentWeights { from: buffers.host_weights(*weights), to: *to })
        .collect();
    Ok(Plan {
        config: config.clone(),
        shape: *shape,
        map: map.clone(),
        weights: buffers.placements(),
        resident,
        buffers: buffers.into_list(),
        table: table(shape, map),
        prefill,
        decode,
    })
}

/// The memory that [`compile`]'s plan takes, in a fraction of its time: what is done is listed, the order
/// is not worked out.
///
/// # Errors
/// As [`compile`].
pub fn footprint(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<Footprint, CompileError> {
    check::check(config, shape, map)?;
    let mut buffers = Buffers::new(config, shape, map);
    for phase in [Phase::Prefill, Phase::Decode] {
        emit(phase, config, shape, map, &mut buffers);
    }
    Ok(Footprint::new(&buffers.into_list(), &table(shape, map)))
}

fn table(shape: &RunShape, map: &DeviceMap) -> StepTableLayout {
    StepTableLayout {
        batches: u32::from(shape.batches),
        batch_size: u32::from(shape.batch_size),
        max_prompt: shape.max_prompt,
        max_new: shape.max_new,
        logprobs: u32::from(shape.logprobs),
        chunks: map.chunking.map_or(1, |chunking| u32::from(chunking.chunks)),
    }
}

/// The work of a phase in one global order; its buffers are laid out on the way.
fn emit<'a>(
    phase: Phase,
    config: &'a ModelConfig,
    shape: &'a RunShape,
    map: &'a DeviceMap,
    buffers: &mut Buffers<'a>,
) -> Vec<emit::Node> {
    buffers.begin_phase();
    let schedule = schedule::schedule(phase, config, shape, map);
    let mut emitter = emit::Emitter::new(phase, config, shape, map, buffers, schedule.uniform);
    match map.schedule {
        Schedule::Overlapped => schedule.entries.iter().for_each(|entry| emitter.emit(entry)),
        Schedule::Barrier | Schedule::BarrierSpread => {
            barrier::emit(&mut emitter, &schedule.entries);
        }
    }
    emitter.into_nodes()
}

impl Device {
    /// The other side.
    fn other(self) -> Device {
        match self {
            Device::Cpu => Device::Gpu,
            Device::Gpu => Device::Cpu,
        }
    }
}
