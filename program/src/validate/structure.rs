//! What must hold of a plan before its order can be looked at: ids, offsets, operands, and buffers
//! that do not share bytes.

use std::collections::BTreeSet;

use model::config::Family;
use model::ops::{Op, Value};

use crate::ir::{
    BufferId, Compute, Copy, Instruction, Lane, LaneProgram, Moved, Phase, Program, Region,
};
use crate::map::Chunk;
use crate::plan::{Buffer, Memory, Plan};

use super::error::{Site, ValidateError};

pub(super) fn check_plan(plan: &Plan) -> Result<(), ValidateError> {
    for (expected, program) in [(Phase::Prefill, &plan.prefill), (Phase::Decode, &plan.decode)] {
        if program.phase != expected {
            return Err(ValidateError::Phase { expected, found: program.phase });
        }
        check_program(program, &plan.buffers, plan.config.family)?;
    }
    let count = plan.buffers.len();
    let known = |what, id: BufferId| match id.0 as usize {
        index if index < count => Ok(()),
        _ => Err(ValidateError::Buffer { what, id: id.0, count }),
    };
    plan.weights.iter().try_for_each(|placed| known("a weight placement", placed.buffer))?;
    for resident in &plan.resident {
        known("a resident weight's source", resident.from)?;
        known("a resident weight", resident.to)?;
    }
    check_addresses(plan)
}

pub(super) fn check_program(
    program: &Program,
    buffers: &[Buffer],
    family: Family,
) -> Result<(), ValidateError> {
    let phase = program.phase;
    let mut seen = BTreeSet::new();
    for LaneProgram { lane, instructions, signals_per_step } in &program.lanes {
        if !seen.insert(*lane) {
            return Err(ValidateError::DuplicateLane { phase, lane: *lane });
        }
        let found = instructions.iter().filter(|i| **i == Instruction::Signal).count() as u32;
        if found != *signals_per_step {
            let declared = *signals_per_step;
            return Err(ValidateError::SignalCount { phase, lane: *lane, declared, found });
        }
    }
    for LaneProgram { lane, instructions, .. } in &program.lanes {
        for (index, instruction) in instructions.iter().enumerate() {
            let site = || Site::new(phase, *lane, index, 0, instruction, family);
            let malformed = |problem: String| ValidateError::Malformed {
                site: site(),
                problem: problem.into_boxed_str(),
            };
            check_regions(instruction, buffers).map_err(malformed)?;
            check_operands(phase, *lane, instruction, buffers).map_err(malformed)?;
            let Instruction::Wait(wait) = instruction else { continue };
            let Some(other) = program.lane(wait.lane) else {
                return Err(ValidateError::WaitLane { site: site(), lane: wait.lane });
            };
            let signals = other.signals_per_step;
            if !(1..=signals).contains(&wait.offset) {
                return Err(ValidateError::WaitOffset { site: site(), lane: wait.lane, signals });
            }
        }
    }
    Ok(())
}

fn check_regions(instruction: &Instruction, buffers: &[Buffer]) -> Result<(), String> {
    for region in instruction.reads().into_iter().chain(instruction.writes()) {
        let id = region.buffer.0;
        if id as usize >= buffers.len() {
            return Err(format!("it names buffer {id}, but there are {} buffers", buffers.len()));
        }
        check_chunk(region.chunk)?;
    }
    check_chunk(chunk_of(instruction))
}

fn check_chunk(chunk: Option<Chunk>) -> Result<(), String> {
    match chunk {
        Some(Chunk { index, of }) if index >= of => Err(format!("it names chunk {index} of {of}")),
        _ => Ok(()),
    }
}

fn chunk_of(instruction: &Instruction) -> Option<Chunk> {
    match instruction {
        Instruction::Compute(compute) => compute.chunk,
        Instruction::Copy(copy) => copy.chunk,
        Instruction::Append(append) => Some(append.chunk),
        Instruction::Decompress(_) | Instruction::Wait(_) | Instruction::Signal => None,
    }
}

/// `None` for the only chunk of one.
pub(super) fn normal(chunk: Option<Chunk>) -> Option<Chunk> {
    chunk.filter(|chunk| chunk.of > 1)
}

/// The operands that an instruction must have, each in the memory that its lane's process maps.
fn check_operands(
    phase: Phase,
    lane: Lane,
    instruction: &Instruction,
    buffers: &[Buffer],
) -> Result<(), String> {
    let need = |what: &str, region: Region, memory: Memory| {
        let buffer = &buffers[region.buffer.0 as usize];
        if buffer.memory == memory {
            return Ok(());
        }
        let (name, found) = (&buffer.name, buffer.memory);
        Err(format!("its {what} is {name} in {found:?}; lane {} needs {memory:?}", lane.name()))
    };
    let own = |host| if lane == Lane::GpuCompute { Memory::Device } else { host };
    match (instruction, lane) {
        (Instruction::Wait(_) | Instruction::Signal, _) => Ok(()),
        (Instruction::Compute(compute), Lane::CpuCompute | Lane::GpuCompute) => {
            check_compute(phase, compute)?;
            need("step table", compute.table, Memory::Control)?;
            for region in compute.inputs.iter().chain(&compute.output) {
                need("value", *region, own(Memory::HostActivations))?;
            }
            compute.caches.iter().try_for_each(|r| need("cache", *r, own(Memory::HostKv)))?;
            compute.weights.iter().try_for_each(|r| need("weights", *r, own(Memory::HostWeights)))
        }
        (Instruction::Append(append), Lane::CpuCompute | Lane::GpuCompute | Lane::CpuAppend) => {
            need("step table", append.table, Memory::Control)?;
            need("fresh rows", append.from, own(Memory::HostActivations))?;
            need("cache", append.to, own(Memory::HostKv))
        }
        (Instruction::Decompress(decompress), Lane::GpuDecompress) => {
            need("source", decompress.from, Memory::Device)?;
            need("target", decompress.to, Memory::Device)
        }
        (Instruction::Copy(copy), Lane::H2dWeights | Lane::H2dActivations | Lane::D2h) => {
            check_copy(copy)?;
            copy.table.map_or(Ok(()), |table| need("step table", table, Memory::Control))?;
            let host = match copy.moved {
                Moved::Weights(_) => Memory::HostWeights,
                Moved::Value(_) => Memory::HostActivations,
                Moved::Cache(_) => Memory::HostKv,
            };
            let to_host = lane == Lane::D2h;
            if to_host && host != Memory::HostActivations {
                return Err("only values are copied to the host".to_owned());
            }
            need("source", copy.from, if to_host { Memory::Device } else { host })?;
            need("target", copy.to, if to_host { host } else { Memory::Device })
        }
        _ => Err(format!("lane {} cannot run it", lane.name())),
    }
}

fn check_compute(phase: Phase, compute: &Compute) -> Result<(), String> {
    let (op, values) = (compute.op, compute.op.reads());
    let expected_caches = if phase == Phase::Prefill { 0 } else { op.caches().len() };
    let counts = [
        ("inputs", compute.inputs.len(), values.len()),
        ("caches", compute.caches.len(), expected_caches),
        ("outputs", usize::from(compute.output.is_some()), usize::from(op.writes().is_some())),
    ];
    for (what, found, expected) in counts {
        if found != expected {
            return Err(format!("it has {found} {what}, the operation needs {expected}"));
        }
    }
    if compute.chunk.is_some() && !op.is_attention() {
        return Err("only attention is split into chunks".to_owned());
    }
    let outputs = op.writes().into_iter().zip(compute.output);
    let values: Vec<(Value, Region)> =
        values.iter().copied().zip(compute.inputs.iter().copied()).chain(outputs).collect();
    for (value, region) in values {
        let split = matches!(value, Value::Scores | Value::Probabilities | Value::Attended);
        let expected = compute.chunk.filter(|_| split && op.is_attention());
        if normal(region.chunk) != normal(expected) {
            return Err(format!(
                "it works on {expected:?}, but its {value:?} is {:?}",
                region.chunk
            ));
        }
    }
    let in_place = matches!(op, Op::Out | Op::Down | Op::Fc1);
    if in_place && compute.output != compute.inputs.get(1).copied() {
        return Err("it must add into the residual stream that it reads".to_owned());
    }
    Ok(())
}

fn check_copy(copy: &Copy) -> Result<(), String> {
    let chunk = match copy.moved {
        // A part of a cache is a buffer of its own.
        Moved::Cache(_) | Moved::Weights(_) => None,
        Moved::Value(_) => normal(copy.chunk),
    };
    if normal(copy.from.chunk) != chunk || normal(copy.to.chunk) != chunk {
        return Err("its source and target are not the chunk that it moves".to_owned());
    }
    if copy.table.is_none() && !matches!(copy.moved, Moved::Weights(_)) {
        return Err("it needs the step table to know how much to move".to_owned());
    }
    Ok(())
}

/// No two buffers that are in use in the same phase share bytes. Weights, resident weights, caches,
/// and whatever both phases touch are in use in both.
fn check_addresses(plan: &Plan) -> Result<(), ValidateError> {
    for buffer in &plan.buffers {
        if buffer.offset_bytes.checked_add(buffer.size_bytes).is_none() {
            return Err(ValidateError::BufferRange { buffer: buffer.name.as_str().into() });
        }
    }
    let used = [used_by(&plan.prefill), used_by(&plan.decode)];
    let mut lasting: BTreeSet<BufferId> = used[0].intersection(&used[1]).copied().collect();
    lasting.extend(plan.weights.iter().map(|placed| placed.buffer));
    lasting.extend(plan.resident.iter().map(|resident| resident.to));
    for program in [&plan.prefill, &plan.decode] {
        let all = program.lanes.iter().flat_map(|lane| &lane.instructions);
        lasting.extend(all.filter_map(|instruction| match instruction {
            Instruction::Append(append) => Some(append.to.buffer),
            _ => None,
        }));
    }
    for (phase, used) in [Phase::Prefill, Phase::Decode].into_iter().zip(used) {
        let mut placed: Vec<&Buffer> = used
            .union(&lasting)
            .map(|id| plan.buffer(*id))
            .filter(|buffer| buffer.memory != Memory::Control && buffer.size_bytes > 0)
            .collect();
        placed.sort_by_key(|buffer| (buffer.memory, buffer.offset_bytes));
        for pair in placed.windows(2) {
            let end_bytes = pair[0].offset_bytes + pair[0].size_bytes;
            if pair[0].memory == pair[1].memory && pair[1].offset_bytes < end_bytes {
                return Err(ValidateError::Overlap {
                    phase,
                    first: pair[0].name.as_str().into(),
                    second: pair[1].name.as_str().into(),
                });
            }
        }
    }
    Ok(())
}

fn used_by(program: &Program) -> BTreeSet<BufferId> {
    program
        .lanes
        .iter()
        .flat_map(|lane| &lane.instructions)
        .flat_map(|instruction| instruction.reads().into_iter().chain(instruction.writes()))
        .map(|region| region.buffer)
        .collect()
}
