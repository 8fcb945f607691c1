//! Checks that each lane runs only what its kind permits, on memory that its kind may access and
//! its worker maps.

use model::ops::Op;

use crate::ir::{Instruction, Moved, Region};
use crate::plan::Buffer;
use crate::topology::{Holds, LaneId, MemoryKind, Topology, WorkKind, rule};

/// An operand: its name, its region, and the content of its segment.
type Operand = (&'static str, Region, Holds);

/// # Errors
/// An action that the lane is not permitted, described in words.
pub(super) fn check(
    lane: LaneId,
    instruction: &Instruction,
    buffers: &[Buffer],
    topology: &Topology,
) -> Result<(), String> {
    let Some(Operands { work, from, to, table, routing }) = operands(instruction) else {
        return Ok(());
    };
    let known = topology.lane(lane);
    let Some(rule) = rule(known.kind, work) else {
        return Err(format!("lane {} cannot run it", known.name));
    };
    let need = |(what, region, holds): &Operand, kinds: &[MemoryKind]| {
        let buffer = &buffers[region.buffer.0 as usize];
        let (segment, kind) = (buffer.segment, topology.memory_kind(buffer.segment.memory));
        let of_kind = kind.filter(|kind| kinds.contains(kind));
        let of_use = of_kind.and_then(|kind| kind.segment(*holds)) == Some(segment.holds);
        if of_use && topology.maps(known.worker, segment.memory) {
            return Ok(());
        }
        let (name, lane, found) = (&buffer.name, &known.name, segment.holds);
        let Some(memory) = topology.memories.get(segment.memory.index()) else {
            return Err(format!(
                "its {what} is {name}, in a memory that the machine does not have"
            ));
        };
        Err(format!(
            "its {what} is {name} in {memory:?}, among {found:?}; lane {lane} needs {holds:?} in \
             {kinds:?} that its worker maps"
        ))
    };
    table.iter().try_for_each(|operand| need(operand, &[MemoryKind::Control]))?;
    routing.iter().try_for_each(|operand| need(operand, &[MemoryKind::Dram]))?;
    from.iter().try_for_each(|operand| need(operand, rule.from))?;
    to.iter().try_for_each(|operand| need(operand, rule.to))
}

struct Operands {
    work: WorkKind,
    from: Vec<Operand>,
    to: Vec<Operand>,
    table: Option<Operand>,
    /// Routing that determines what is read.
    routing: Option<Operand>,
}

/// Returns the operands of work; `None` for waits and signals.
fn operands(instruction: &Instruction) -> Option<Operands> {
    let table = |region| Some(("step table", region, Holds::Table));
    Some(match instruction {
        Instruction::Wait(_) | Instruction::Signal => return None,
        Instruction::Compute(compute) => {
            let each = |what, regions: &[Region], holds| -> Vec<Operand> {
                regions.iter().map(|region| (what, *region, holds)).collect()
            };
            let mut from = each("value", &compute.inputs, Holds::Activations);
            from.extend(each("cache", &compute.caches, Holds::Kv));
            from.extend(each("weights", &compute.weights, Holds::Weights));
            let to = compute.output.map(|region| match compute.op {
                Op::Sample => ("checkpoints", region, Holds::Kv),
                _ => ("value", region, Holds::Activations),
            });
            let mut to: Vec<Operand> = to.into_iter().collect();
            if compute.op.updates_state() {
                to.extend(each("state", &compute.caches, Holds::Kv));
            }
            let table = table(compute.table);
            Operands { work: WorkKind::Compute, from, to, table, routing: None }
        }
        Instruction::Append(append) => Operands {
            work: WorkKind::Append,
            from: vec![("fresh rows", append.from, Holds::Activations)],
            to: vec![("cache", append.to, Holds::Kv)],
            table: table(append.table),
            routing: None,
        },
        Instruction::Copy(copy) => {
            let (work, holds) = match copy.moved {
                Moved::Weights(_) => (WorkKind::CopyWeights, Holds::Weights),
                Moved::Value(_) | Moved::Deferred(_) => (WorkKind::CopyValue, Holds::Activations),
                Moved::Cache(_) => (WorkKind::CopyCache, Holds::Kv),
                Moved::Sequences(_) => (WorkKind::MoveCache, Holds::Kv),
            };
            let from = vec![("source", copy.from, holds)];
            let to = vec![("target", copy.to, holds)];
            Operands { work, from, to, table: copy.table.and_then(table), routing: None }
        }
        Instruction::Decompress(decompress) => Operands {
            work: WorkKind::Decompress,
            from: vec![("source", decompress.from, Holds::Weights)],
            to: vec![("target", decompress.to, Holds::Weights)],
            table: None,
            routing: None,
        },
        Instruction::Read(read) => Operands {
            work: WorkKind::Read,
            from: vec![("source", read.from, Holds::Weights)],
            to: vec![("target", read.to, Holds::Weights)],
            table: read.routing.and_then(|regions| table(regions.table)),
            routing: read.routing.map(|regions| ("routing", regions.routing, Holds::Activations)),
        },
    })
}
