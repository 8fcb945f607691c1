//! Caches of experts: who fills them.

use model::ops::Op;

use crate::ir::Instruction;
use crate::plan::Plan;
use crate::topology::HardwareEngine;

use super::error::{NamedProgram, Names, Site, ValidateError};

/// Checks that a cache of experts is filled only by reads of experts that rows are routed to, in
/// layers whose router is the CPU's, which assigns the slots.
pub(super) fn check(plan: &Plan) -> Result<(), ValidateError> {
    if plan.expert_cache.is_empty() {
        return Ok(());
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
        for (lane, index, instruction) in all() {
            let written = instruction.writes();
            let cache = written.iter().find_map(|region| plan.expert_cache_of(region.buffer));
            let Some(cache) = cache else { continue };
            let is_filled = matches!(instruction, Instruction::Read(read)
                if read.op == cache.op && read.routing.is_some() && is_assigned(read.at.layer));
            if !is_filled {
                let named = NamedProgram::new(program);
                let site = Site::new(named, lane, index, 0, instruction, names);
                let problem =
                    "it fills a cache of experts whose slots no router of the CPU assigns".into();
                return Err(ValidateError::Malformed { site, problem });
            }
        }
    }
    Ok(())
}
