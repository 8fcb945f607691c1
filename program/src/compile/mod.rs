//! The compiler: device map to plan.
//!
//! Three steps, each in a file: `schedule` lists the work in one global order that respects data
//! flow (with the early copies and barriers of `barrier`, if the map asks); `emit` turns an entry
//! into instructions, inserting copies where a value or a weight is needed on the other device;
//! `sync` splits the order into lanes and inserts the fewest waits and signals that keep every pair
//! of conflicting accesses ordered, also between consecutive steps.
//!
//! Executing the global order serially would be a correct run. Every wait points backwards in it,
//! so no compiled program can deadlock; the validator proves it again, independently.

mod barrier;
mod buffers;
mod check;
mod deferred_rows;
mod emit;
mod error;
mod expert_slots;
mod fresh;
mod pieces;
mod portions;
mod residency;
mod routes;
mod schedule;
mod sync;
mod valid_parts;
mod weights;

use model::config::ModelConfig;
use rustc_hash::FxHashMap;

use crate::expert_cache::cache_slots;
use crate::ir::{Program, ProgramId, ProgramShape, ProgramWork, Rows};
use crate::map::{ComputeDevice, DeviceMap, Schedule, layer_list};
use crate::plan::{
    DeviceScratch, DeviceWork, Footprint, Plan, ProgramFootprint, ResidentWeights, RunShape,
};
use crate::routing_log::LOG_ENTRIES;
use crate::sizes::READ_ALIGN_BYTES;
use crate::step_table::StepTableLayout;
use crate::topology::{MemoryId, SegmentId, Topology};

use buffers::{BufferNames, Buffers};
use emit::{Compiling, Emitted};
pub use error::CompileError;
use routes::Routes;

/// Compiles a placement for a model and the maxima of a run, on the canonical machine that the map
/// is for.
///
/// # Errors
/// A map that does not fit the model, or asks for what no worker can do.
pub fn compile(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<Plan, CompileError> {
    compile_on(&machine_of(map), config, shape, map)
}

/// Compiles a placement as [`compile`] does, on a machine of another shape.
///
/// # Errors
/// Fails like [`compile`], and for a topology without a lane or memory that the map requires.
pub fn compile_on(
    topology: &Topology,
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<Plan, CompileError> {
    compile_programs(topology, config, shape, map, None)
}

/// Compiles only one program of a placement's plan, in a fraction of the time: the other programs
/// have no instructions, and buffers have no names. Such a plan can be priced and simulated, but
/// not run.
///
/// # Errors
/// Fails like [`compile`].
pub fn compile_program(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    program: ProgramId,
) -> Result<Plan, CompileError> {
    compile_programs(&machine_of(map), config, shape, map, Some(program))
}

/// Compiles all programs of a plan, or `only` one.
fn compile_programs(
    topology: &Topology,
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    only: Option<ProgramId>,
) -> Result<Plan, CompileError> {
    let routes = Routes::new(topology, map)?;
    check::check(config, shape, map, &routes)?;
    let names = if only.is_none() { BufferNames::Given } else { BufferNames::Empty };
    let mut buffers = Buffers::new(config, shape, map, &routes, names);
    let of = Compiling { config, shape, map, routes: &routes };
    let lanes = topology.lanes.len();
    let all: Vec<usize> = (0..config.num_layers).collect();
    let programs = (0..).map(ProgramId).zip(shape.programs(config)).map(|(id, shape)| {
        if only.is_some_and(|only| only != id) {
            return Program { id, shape, lanes: Vec::new() };
        }
        let nodes = emit(shape, of, &all, &mut buffers, Emitted::Instructions);
        let lanes = sync::synchronise(nodes, lanes, shape.is_single_step());
        Program { id, shape, lanes }
    });
    let programs = programs.collect();
    let resident = buffers
        .resident
        .iter()
        .map(|(weights, to)| ResidentWeights { source: buffers.resident_source(*weights), to: *to })
        .collect();
    Ok(Plan {
        expert_cache: buffers.expert_cache(),
        config: config.clone(),
        shape: *shape,
        topology: topology.clone(),
        map: map.clone(),
        weights: buffers.placements(),
        resident,
        buffers: buffers.into_list(),
        table: table(config, shape, map),
        programs,
    })
}

/// Computes the memory that [`compile`]'s plan takes, in a fraction of its time: the work is listed
/// but not ordered.
///
/// `scratch` is the device memory required in addition to the plan.
///
/// # Errors
/// Fails like [`compile`].
pub fn footprint(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    scratch: Option<DeviceScratch>,
) -> Result<Footprint, CompileError> {
    Ok(footprints(config, shape, map, scratch, None)?.1)
}

/// Computes the device memory of that plan if it had only one of its programs. The largest buffers
/// of the plan's programs count, and their scratch is at most the sum.
///
/// # Errors
/// Fails like [`compile`].
pub fn program_footprint(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    scratch: Option<DeviceScratch>,
    program: ProgramId,
) -> Result<ProgramFootprint, CompileError> {
    let (kept, with) = footprints(config, shape, map, scratch, Some(program))?;
    let (kept_bytes, with_bytes) = (kept.device_bytes, with.device_bytes);
    // If slots start at pages, the preceding buffers may end anywhere within one.
    let own_bytes = match map.direct_reads {
        true if with_bytes > kept_bytes => {
            with_bytes - kept_bytes.next_multiple_of(READ_ALIGN_BYTES) + READ_ALIGN_BYTES
        }
        _ => with_bytes - kept_bytes,
    };
    Ok(ProgramFootprint { kept_bytes, own_bytes, scratch_bytes: with.device_scratch_bytes })
}

/// Returns the footprint without the buffers of any program, and with those of all programs or of
/// `only` one.
fn footprints(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    scratch: Option<DeviceScratch>,
    only: Option<ProgramId>,
) -> Result<(Footprint, Footprint), CompileError> {
    let topology = machine_of(map);
    let routes = Routes::new(&topology, map)?;
    check::check(config, shape, map, &routes)?;
    let mut buffers = Buffers::new(config, shape, map, &routes, BufferNames::Empty);
    let of = Compiling { config, shape, map, routes: &routes };
    let layers = layers_with_all_buffers(config, shape, map);
    let mut ends = Ends(buffers.ends().clone());
    let of_ends =
        |ends: &Ends| Footprint::of_ends(&topology, |id| ends.of(id), &table(config, shape, map));
    let kept = of_ends(&ends);
    // Only the scratch depends on the instructions.
    let kept_work = if scratch.is_some() { Emitted::Instructions } else { Emitted::BuffersAlone };
    let mut emitted = Vec::new();
    for (id, shape) in (0..).map(ProgramId).zip(shape.programs(config)) {
        let nodes = match only {
            Some(only) if only != id => Vec::new(),
            _ => ends.add(shape, of, &layers, &mut buffers, kept_work),
        };
        emitted.push((id, shape, nodes));
    }
    let footprint = of_ends(&ends);
    let computes = topology.device_computes();
    let programs = emitted.iter().map(|(id, shape, nodes)| {
        let own = nodes.iter().filter(|node| computes.contains(node.lane));
        let instructions = own.map(|node| &node.instruction).collect();
        ProgramWork { id: *id, shape: *shape, instructions }
    });
    let programs = programs.collect();
    let buffers_bytes = footprint.device_bytes;
    let work = || DeviceWork { config, shape, map, buffers_bytes, programs };
    Ok((kept, footprint.with_scratch(scratch, work)))
}

/// Returns true if a map can compute prompts in chunks.
pub fn runs_in_chunks(config: &ModelConfig, map: &DeviceMap) -> bool {
    let topology = machine_of(map);
    (0..config.num_layers).all(|layer| check::check_chunked(config, map, layer, &topology).is_ok())
}

/// Returns the canonical machine for a map: with a device if the map uses one or its memory.
pub fn machine_of(map: &DeviceMap) -> Topology {
    let keeps_kv = map.kv.iter().any(|kv| kv.any_on(MemoryId::VRAM));
    let mut tiers = map.weights.iter().flatten().chain([&map.outer_weights]);
    let has_device = map.uses_gpu() || keeps_kv || tiers.any(|home| *home == MemoryId::VRAM);
    let mut topology = if has_device { Topology::with_device() } else { Topology::cpu_alone() };
    (0..map.slow_tier_count()).for_each(|_| {
        topology.add_slow_tier();
    });
    with_storages(topology, map)
}

/// Adds the storages from which a map reads weights.
fn with_storages(mut topology: Topology, map: &DeviceMap) -> Topology {
    if map.uses_storages() {
        (0..map.shares.storages()).for_each(|_| {
            match map.direct_reads {
                true => topology.add_direct_storage(),
                false => topology.add_storage(),
            };
        });
    }
    topology
}

fn table(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> StepTableLayout {
    let chunks = map.attention_chunking().map_or(1, |chunking| u32::from(chunking.chunks));
    let mut table = shape.table(config, chunks);
    if cache_slots(config, shape, map) > 0 {
        table.routers.logged = LOG_ENTRIES;
    }
    table
}

/// Lists the work of a program in some layers in one global order; lays out its buffers in the
/// process.
fn emit<'a>(
    program: ProgramShape,
    of: Compiling<'a>,
    layers: &[usize],
    buffers: &mut Buffers<'a>,
    emitted: Emitted,
) -> Vec<emit::Node> {
    buffers.begin_program();
    if let Rows::Moves(to) = program.rows {
        let mut emitter = emit::Emitter::new(program, of, buffers, false, emitted);
        emitter.move_caches(to, layers);
        return emitter.into_nodes();
    }
    let schedule = schedule::schedule(program, of.config, of.shape.batches, of.map, layers);
    let mut emitter = emit::Emitter::new(program, of, buffers, schedule.uniform, emitted);
    emitter.note_host_experts(&schedule.entries);
    match of.map.schedule {
        Schedule::Overlapped => {
            let entries = emitter.in_portions(&schedule.entries);
            entries.iter().for_each(|entry| emitter.emit(entry));
        }
        Schedule::Barrier | Schedule::BarrierSpread => {
            barrier::emit(&mut emitter, &schedule.entries);
        }
    }
    emitter.into_nodes()
}

/// Number of streams whose buffers determine those of any larger number: each additional stream
/// adds the same amount.
const STREAMS: u16 = 4;

/// Ends of segments, over programs that share addresses.
#[derive(Debug, Default)]
struct Ends(FxHashMap<SegmentId, u64>);

impl Ends {
    /// Lists the work of a program, of a limited number of streams if it has many.
    fn add<'a>(
        &mut self,
        shape: ProgramShape,
        of: Compiling<'a>,
        layers: &[usize],
        buffers: &mut Buffers<'a>,
        emitted: Emitted,
    ) -> Vec<emit::Node> {
        if shape.joint_streams() <= STREAMS + 1 {
            let nodes = emit(shape, of, layers, buffers, emitted);
            buffers.ends().iter().for_each(|(segment, end)| self.raise(*segment, *end));
            return nodes;
        }
        let few = ProgramShape { streams: STREAMS, ..shape };
        let nodes = emit(few, of, layers, buffers, emitted);
        let before = buffers.ends().clone();
        let more = ProgramShape { streams: STREAMS + 1, ..shape };
        emit(more, of, layers, buffers, Emitted::BuffersAlone);
        for (segment, end) in buffers.ends() {
            let few_end = before.get(segment).copied().unwrap_or(0);
            let others = u64::from(shape.streams - STREAMS);
            self.raise(*segment, few_end + others * (end - few_end));
        }
        nodes
    }

    fn raise(&mut self, segment: SegmentId, end: u64) {
        let highest = self.0.entry(segment).or_insert(0);
        *highest = (*highest).max(end);
    }

    fn of(&self, segment: SegmentId) -> u64 {
        self.0.get(&segment).copied().unwrap_or(0)
    }
}

/// Returns layers whose work uses every buffer that the work of all layers uses: the first layer of
/// each kind after each other kind, in each weight slot, with its preceding layer, and for each
/// kind that streams caches enough layers to use all of their slots.
fn layers_with_all_buffers(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Vec<usize> {
    let count = map.weights.len();
    // Each layer streams at least one part of each kind for each batch whose caches it streams.
    let streaming = |layer: usize| {
        let batches = shape.batches.saturating_sub(map.kv[layer].device_batches);
        usize::from(map.kv_slots.div_ceil(batches.max(1)))
    };
    let slots = usize::from(map.weight_slots.max(1));
    // Layers that share caches use other values than those with their own.
    let has_equal_kind = |one: usize, other: usize| {
        !config.has_kind_models()
            || config.layers.kind_index(one) == config.layers.kind_index(other)
    };
    let is_alike = |one: usize, other: usize| {
        config.layer_ops(one) == config.layer_ops(other)
            && has_equal_kind(one, other)
            && map.prefill.layers[one] == map.prefill.layers[other]
            && map.decode.layers[one] == map.decode.layers[other]
            && map.weights[one] == map.weights[other]
            && map.kv[one] == map.kv[other]
            && map.weight_formats.layers[one] == map.weight_formats.layers[other]
    };
    let follows_alike = |one: usize, other: usize| match (one.checked_sub(1), other.checked_sub(1))
    {
        (Some(one), Some(other)) => is_alike(one, other),
        (one, other) => one == other,
    };
    let mut firsts: Vec<usize> = Vec::new();
    for layer in 0..count {
        let alike = firsts.iter().filter(|first| is_alike(**first, layer)).count();
        let has_free_slots = alike < streaming(layer) && streams_caches(config, shape, map, layer);
        let is_known = firsts.iter().any(|first| {
            first % slots == layer % slots
                && is_alike(*first, layer)
                && follows_alike(*first, layer)
        });
        if !is_known || has_free_slots || layer + 1 == count {
            firsts.push(layer);
        }
    }
    (0..count).filter(|layer| firsts.contains(layer) || firsts.contains(&(layer + 1))).collect()
}

/// Returns true if the GPU reads caches of a layer that are stored elsewhere.
fn streams_caches(config: &ModelConfig, shape: &RunShape, map: &DeviceMap, layer: usize) -> bool {
    let mut tiers = map.kv[layer].k.iter().chain(&map.kv[layer].v);
    let attends = |chunking, devices: &[ComputeDevice]| {
        let list = layer_list(config, layer, chunking);
        let mut attention = list.iter().zip(devices).filter(|(entry, _)| entry.op.is_attention());
        attention.any(|(_, device)| *device == ComputeDevice::Gpu)
    };
    tiers.any(|home| *home != MemoryId::VRAM)
        && (attends(map.chunking, &map.decode.layers[layer])
            || (shape.is_chunked() && attends(None, &map.prefill.layers[layer])))
}

impl ComputeDevice {
    /// Returns the opposite side.
    fn other(self) -> ComputeDevice {
        match self {
            ComputeDevice::Cpu => ComputeDevice::Gpu,
            ComputeDevice::Gpu => ComputeDevice::Cpu,
        }
    }
}
