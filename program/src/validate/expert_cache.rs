//! Memory of experts that are read from storages: its size, and who fills a cache.

use std::collections::BTreeMap;

use model::ops::Op;

use crate::expert_cache::cache_slots;
use crate::ir::{BufferId, Instruction, Read, Region};
use crate::map::Chunk;
use crate::plan::Plan;
use crate::topology::HardwareEngine;

use super::error::{NamedProgram, Names, Site, ValidateError};

/// Checks that reads of experts have slots for them, and that a cache of experts is filled only by
/// reads of experts that rows are routed to, in layers whose router is the CPU's, which assigns the
/// slots.
pub(super) fn check(plan: &Plan) -> Result<(), ValidateError> {
    let pinned = &plan.map.pinned_experts;
    let count = plan.config.experts.map_or(0, |experts| experts.count);
    let is_known = pinned.iter().all(|one| {
        usize::from(one.expert) < count && usize::from(one.layer) < plan.config.num_layers
    });
    let ascend = pinned.windows(2).all(|pair| pair[0] < pair[1]);
    if pinned.len() > plan.map.expert_slots as usize || !is_known || !ascend {
        return Err(ValidateError::PinnedExperts { pinned: pinned.len() });
    }
    let names = Names { topology: &plan.topology, family: plan.config.family };
    for program in &plan.programs {
        let all = || {
            program.lanes.iter().flat_map(|list| {
                let instructions = list.instructions.iter().enumerate();
                instructions.map(move |(index, instruction)| (list.lane, index, instruction))
            })
        };
        let is_assigned = |layer: Option<u16>| {
            all().any(|(lane, _, instruction)| {
                let on_cpu = matches!(plan.topology.lane(lane).engine, HardwareEngine::Cpu);
                matches!(instruction, Instruction::Compute(compute)
                    if on_cpu && compute.op == Op::Router && compute.at.layer == layer)
            })
        };
        let mut lists = BTreeMap::new();
        for (lane, index, instruction) in all() {
            let written = instruction.writes();
            let is_cached =
                written.iter().any(|region| plan.expert_cache_of(region.buffer).is_some());
            let problem = match instruction {
                _ if !follows_one_list(instruction, &mut lists) => {
                    "it accesses a portion of experts without the list that defines it"
                }
                Instruction::Read(read) if is_cached && is_first(read.to.portion) => {
                    "it reads the portion of the experts that are in the cache"
                }
                Instruction::Read(read) if !has_slots(plan, read) => {
                    "its slots are too small for the experts"
                }
                Instruction::Read(read)
                    if is_cached && (read.routing.is_none() || !is_assigned(read.at.layer)) =>
                {
                    "it fills a cache of experts whose slots no router of the CPU assigns"
                }
                Instruction::Read(_) => continue,
                _ if is_cached => "it fills a cache of experts, but it is not a read",
                _ => continue,
            };
            let site = Site::new(NamedProgram::new(program), lane, index, 0, instruction, names);
            return Err(ValidateError::Malformed { site, problem: problem.into() });
        }
    }
    Ok(())
}

/// Returns true if an instruction that accesses portions of a buffer reads the routing that they
/// follow, and earlier ones follow the same, in as many portions. Accesses that follow different
/// lists of one routing are then ordered by those of the routing.
fn follows_one_list(
    instruction: &Instruction,
    lists: &mut BTreeMap<BufferId, (Option<Region>, u16)>,
) -> bool {
    let list = match instruction {
        Instruction::Read(read) => read.routing.map(|regions| regions.routing),
        Instruction::Compute(compute) if compute.op.is_expert() => compute.inputs.get(1).copied(),
        _ => None,
    };
    instruction.accesses().into_iter().all(|(region, _)| {
        let Some(Chunk { of, .. }) = region.portion else { return true };
        let is_whole = |list: &Region| list.chunk.is_none() && list.portion.is_none();
        let known = lists.entry(region.buffer).or_insert((list, of));
        list.is_some_and(|list| is_whole(&list)) && *known == (list, of)
    })
}

fn is_first(portion: Option<Chunk>) -> bool {
    portion.is_some_and(|portion| portion.index == 0)
}

/// Returns true if each expert that a read may fetch has a slot with capacity for it.
fn has_slots(plan: &Plan, read: &Read) -> bool {
    let ops = read.expert_ops();
    let Some(record) = plan.expert_record(read.at.layer, ops) else { return true };
    let buffer_bytes = plan.buffers.get(read.to.buffer.0 as usize).map(|buffer| buffer.size_bytes);
    let (count, slot_bytes) = match plan.expert_cache_of(read.to.buffer) {
        Some(cache) => (cache_slots(&plan.config, &plan.shape, &plan.map).into(), cache.slot_bytes),
        None => (record.count, record.slot_bytes(ops)),
    };
    let needed_bytes = count.checked_mul(slot_bytes);
    record.slot_bytes(ops) <= slot_bytes
        && buffer_bytes.zip(needed_bytes).is_some_and(|(size, needed)| needed <= size)
}
