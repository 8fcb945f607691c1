//! Conditions on a plan that must hold before its order can be checked: ids, offsets, operands, and
//! buffers that do not share bytes. The memory of an operand is checked by `reach`.

use std::collections::BTreeSet;

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::expert_portions::{is_divided, portion};
use crate::ir::{
    BufferId, Compute, Copy, Instruction, LaneProgram, Moved, Program, ProgramShape, Read, Region,
};
use crate::kv_owner::AttentionSide;
use crate::map::Chunk;
use crate::pieces::divides;
use crate::plan::{Buffer, Plan, ResidentSource};
use crate::pooling::inputs;
use crate::sizes::READ_ALIGN_BYTES;
use crate::topology::{SegmentId, Topology};

use super::error::{NamedLane, NamedProgram, Names, Site, ValidateError};
use super::parts::{normal, operands};
use super::{checkpoints, expert_cache, kv_owner, reach};

pub(super) fn check_plan(plan: &Plan) -> Result<(), ValidateError> {
    plan.topology.check()?;
    for (place, program) in plan.programs.iter().enumerate() {
        if program.id.index() != place {
            return Err(ValidateError::ProgramId { place, id: program.id });
        }
        let next = program.shape.next;
        if plan.programs.get(next.index()).is_none_or(|next| next.shape.streams == 0) {
            let program = NamedProgram::new(program);
            return Err(ValidateError::NextProgram { program, next });
        }
        let pools = Some(plan.shape.pools());
        check_program(program, &plan.buffers, &plan.topology, &plan.config, pools)?;
    }
    let count = plan.buffers.len();
    let known = |what, id: BufferId| match id.0 as usize {
        index if index < count => Ok(()),
        _ => Err(ValidateError::Buffer { what, id: id.0, count }),
    };
    for buffer in &plan.buffers {
        let segment = buffer.segment;
        if !plan.topology.segments_of(segment.memory).contains(&segment) {
            return Err(ValidateError::Segment { buffer: buffer.name.as_str().into() });
        }
    }
    plan.weights.iter().try_for_each(|placed| known("a weight placement", placed.buffer))?;
    for resident in &plan.resident {
        if let ResidentSource::Host(from) = resident.source {
            known("a resident weight's source", from)?;
        }
        known("a resident weight", resident.to)?;
    }
    if let Some(cache) = plan.expert_cache {
        known("a cache of experts", cache.buffer)?;
    }
    expert_cache::check(plan)?;
    checkpoints::check(plan)?;
    check_addresses(plan)
}

/// Checks a program. `pools` is true if the samples of its plan pool hidden states, and `None` if
/// the plan is not known.
pub(super) fn check_program(
    program: &Program,
    buffers: &[Buffer],
    topology: &Topology,
    config: &ModelConfig,
    pools: Option<bool>,
) -> Result<(), ValidateError> {
    let named_program = NamedProgram::new(program);
    let behind_caches = program.shape.rows.are_behind_caches();
    let named = |lane| NamedLane::new(topology, lane);
    let mut seen = BTreeSet::new();
    for LaneProgram { lane, instructions, signals_per_step } in &program.lanes {
        if lane.index() >= topology.lanes.len() {
            return Err(ValidateError::UnknownLane { program: named_program, lane: *lane });
        }
        if !seen.insert(*lane) {
            return Err(ValidateError::DuplicateLane {
                program: named_program,
                lane: named(*lane),
            });
        }
        let found = instructions.iter().filter(|i| **i == Instruction::Signal).count() as u32;
        if found != *signals_per_step {
            let declared = *signals_per_step;
            let (program, lane) = (named_program, named(*lane));
            return Err(ValidateError::SignalCount { program, lane, declared, found });
        }
    }
    for LaneProgram { lane, instructions, .. } in &program.lanes {
        for (index, instruction) in instructions.iter().enumerate() {
            let names = Names { topology, family: config.family };
            let site = || Site::new(named_program, *lane, index, 0, instruction, names);
            let malformed = |problem: String| ValidateError::Malformed {
                site: site(),
                problem: problem.into_boxed_str(),
            };
            check_regions(instruction, buffers).map_err(malformed)?;
            match instruction {
                Instruction::Compute(compute) => {
                    let model = config.at(compute.at.layer);
                    check_compute(model, pools, behind_caches, compute).map_err(malformed)?;
                    kv_owner::check_compute(&program.shape, model, compute).map_err(malformed)?;
                }
                Instruction::Copy(copy) => {
                    let model = config.at(copy.at.layer);
                    check_copy(&program.shape, model, copy).map_err(malformed)?;
                    kv_owner::check_copy(&program.shape, config, copy).map_err(malformed)?;
                }
                Instruction::Append(append) => {
                    kv_owner::check_append(&program.shape, append).map_err(malformed)?
                }
                Instruction::Read(read) => check_read(read, buffers).map_err(malformed)?,
                _ => {}
            }
            reach::check(*lane, instruction, buffers, topology).map_err(malformed)?;
            let Instruction::Wait(wait) = instruction else { continue };
            let Some(other) = program.lane(wait.lane) else {
                return Err(ValidateError::WaitLane { site: site(), lane: named(wait.lane) });
            };
            let signals = other.signals_per_step;
            if !(1..=signals).contains(&wait.offset) {
                let lane = named(wait.lane);
                return Err(ValidateError::WaitOffset { site: site(), lane, signals });
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
        check_chunk(region.portion)?;
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
        Instruction::Decompress(_)
        | Instruction::Read(_)
        | Instruction::Wait(_)
        | Instruction::Signal => None,
    }
}

/// Checks a read. Only experts are read in parts. The last block that is read fills its page, so
/// it must not extend into the next buffer.
fn check_read(read: &Read, buffers: &[Buffer]) -> Result<(), String> {
    if read.routing.is_some() && !read.op.is_expert() {
        return Err("it reads the experts of rows from weights that are not of experts".to_owned());
    }
    let are_joined = read.joined.iter().all(|joined| joined.op.is_expert());
    if !read.joined.is_empty() && (read.routing.is_none() || !are_joined) {
        return Err("only linears of experts that rows are routed to are read together".to_owned());
    }
    let slot = &buffers[read.to.buffer.0 as usize];
    let is_whole = |bytes: u64| bytes.is_multiple_of(READ_ALIGN_BYTES);
    match is_whole(slot.offset_bytes) && is_whole(slot.size_bytes) {
        true => Ok(()),
        false => Err(format!("{} does not begin and end with a page", slot.name)),
    }
}

fn check_compute(
    config: &ModelConfig,
    pools: Option<bool>,
    behind_caches: bool,
    compute: &Compute,
) -> Result<(), String> {
    let op = compute.op;
    let pools = pools
        .unwrap_or_else(|| compute.inputs.len() > inputs(op, compute.chunk, config, false).count());
    let values = inputs(op, compute.chunk, config, pools).count();
    let has_caches = behind_caches || op.updates_state();
    let expected_caches = match op {
        // The caches of checkpoints are checked with the plan.
        Op::Sample => compute.caches.len(),
        _ if has_caches => op.caches(config).len(),
        _ => 0,
    };
    let counts = [
        ("inputs", compute.inputs.len(), values),
        ("caches", compute.caches.len(), expected_caches),
        (
            "outputs",
            usize::from(compute.output.is_some() && op != Op::Sample),
            usize::from(op.writes(config).is_some()),
        ),
    ];
    for (what, found, expected) in counts {
        if found != expected {
            return Err(format!("it has {found} {what}, the operation needs {expected}"));
        }
    }
    check_portion(config, compute)?;
    if !op.is_attention() {
        check_piece(config, compute)?;
    }
    let residual = operands(config, compute).find(|(value, _)| *value == Value::Hidden);
    let adds = portion(op, compute.chunk).is_none() && op.adds_to_residual(config);
    if adds && compute.output != residual.map(|(_, region)| region) {
        return Err("it must add into the residual stream that it reads".to_owned());
    }
    Ok(())
}

/// Checks a portion of experts: it has its portion of weights and of the values of experts, and no
/// other operation has portions.
fn check_portion(config: &ModelConfig, compute: &Compute) -> Result<(), String> {
    let portion = portion(compute.op, compute.chunk);
    let divided = |value: Value| portion.filter(|_| is_divided(value));
    let values = operands(config, compute).map(|(value, region)| (region, divided(value)));
    let weights = compute.weights.iter().map(|region| (*region, portion));
    let others = compute.caches.iter().chain([&compute.table]).map(|region| (*region, None));
    let is_own = |(region, expected): (Region, Option<Chunk>)| {
        region.portion == expected && (portion.is_none() || normal(region.chunk).is_none())
    };
    match values.chain(weights).chain(others).all(is_own) {
        true => Ok(()),
        false => Err("its operands are not those of its portion of the experts".to_owned()),
    }
}

/// Checks a piece of a linear: it multiplies its own weights, reads its whole first input, and
/// writes its columns; an operation that is not a piece has whole weights.
fn check_piece(config: &ModelConfig, compute: &Compute) -> Result<(), String> {
    let (op, chunk) = (compute.op, compute.chunk);
    let piece = normal(chunk).filter(|_| portion(op, chunk).is_none());
    if piece.is_some_and(|piece| !divides(config, op, piece.of)) {
        return Err("only attention and dense linears are split into chunks".to_owned());
    }
    if compute.weights.iter().any(|region| normal(region.chunk) != piece) {
        return Err("its weights are not those of its rows".to_owned());
    }
    let Some(piece) = piece else { return Ok(()) };
    let is_own = |region: &Region| normal(region.chunk) == Some(piece);
    let is_whole = |region: &Region| normal(region.chunk).is_none();
    if !compute.output.as_ref().is_some_and(is_own) {
        return Err("it does not write its own columns".to_owned());
    }
    let (first, others) = compute.inputs.split_at(1.min(compute.inputs.len()));
    if !first.iter().all(is_whole) || !others.iter().all(|one| is_own(one) || is_whole(one)) {
        return Err("its inputs are not the columns that it reads".to_owned());
    }
    Ok(())
}

fn check_copy(shape: &ProgramShape, config: &ModelConfig, copy: &Copy) -> Result<(), String> {
    if copy.table.is_none() && !matches!(copy.moved, Moved::Weights(_)) {
        return Err("it needs the step table to know how much to move".to_owned());
    }
    let chunk = match copy.moved {
        // Each end has its own part, which `owners` checks.
        Moved::Deferred(_) => return Ok(()),
        // A part of a cache is a separate buffer.
        Moved::Cache(_) | Moved::Sequences(_) => None,
        Moved::Weights(_) | Moved::Value(_) => normal(copy.chunk),
    };
    let divided = |of: u16| match copy.moved {
        Moved::Weights(op) => divides(config, op, of),
        // Attended values are split by units, and values of sequences with owners by rows.
        Moved::Value(value)
            if value != Value::Attended && shape.attention_side == AttentionSide::Mapped =>
        {
            let elements = value.row_elements(config);
            elements.is_none_or(|elements| elements.is_multiple_of(usize::from(of)))
        }
        _ => true,
    };
    if chunk.is_some_and(|chunk| !divided(chunk.of)) {
        return Err("what it moves cannot be divided into that many equal parts".to_owned());
    }
    if normal(copy.from.chunk) != chunk || normal(copy.to.chunk) != chunk {
        return Err("its source and target are not the chunk that it moves".to_owned());
    }
    Ok(())
}

/// Checks that no two buffers in use in the same program share bytes. Weights, resident weights,
/// caches, and buffers that several programs access are in use in all of them.
fn check_addresses(plan: &Plan) -> Result<(), ValidateError> {
    for buffer in &plan.buffers {
        if buffer.offset_bytes.checked_add(buffer.size_bytes).is_none() {
            return Err(ValidateError::BufferRange { buffer: buffer.name.as_str().into() });
        }
    }
    let used: Vec<BTreeSet<BufferId>> = plan.programs.iter().map(used_by).collect();
    let mut lasting = BTreeSet::new();
    for (place, ids) in used.iter().enumerate() {
        lasting.extend(used[..place].iter().flat_map(|others| ids.intersection(others)));
    }
    lasting.extend(plan.weights.iter().map(|placed| placed.buffer));
    lasting.extend(plan.resident.iter().map(|resident| resident.to));
    lasting.extend(plan.expert_cache.map(|cache| cache.buffer));
    for program in &plan.programs {
        let all = program.lanes.iter().flat_map(|lane| &lane.instructions);
        lasting.extend(all.flat_map(|instruction| match instruction {
            Instruction::Append(append) => vec![append.to.buffer],
            // Values of deferred rows must last until the rows continue.
            Instruction::Copy(copy) if matches!(copy.moved, Moved::Deferred(_)) => {
                vec![kv_owner::kept_end(copy).buffer]
            }
            Instruction::Compute(compute) if compute.op == Op::Sample => {
                compute.output.iter().map(|checkpoints| checkpoints.buffer).collect()
            }
            Instruction::Compute(compute) if compute.op.updates_state() => {
                compute.caches.iter().map(|cache| cache.buffer).collect()
            }
            _ => Vec::new(),
        }));
    }
    for (program, used) in plan.programs.iter().zip(used) {
        let mut placed: Vec<&Buffer> = used
            .union(&lasting)
            .map(|id| plan.buffer(*id))
            .filter(|buffer| buffer.segment != SegmentId::CONTROL && buffer.size_bytes > 0)
            .collect();
        placed.sort_by_key(|buffer| (buffer.segment, buffer.offset_bytes));
        for pair in placed.windows(2) {
            let end_bytes = pair[0].offset_bytes + pair[0].size_bytes;
            if pair[0].segment == pair[1].segment && pair[1].offset_bytes < end_bytes {
                return Err(ValidateError::Overlap {
                    program: NamedProgram::new(program),
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
