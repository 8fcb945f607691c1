//! Groups the records of the lanes by iteration.

use std::collections::HashMap;

use engine::replay::ReplayTrace;
use model::ops::Op;
use program::ir::{Instruction, ProgramId};
use program::plan::Plan;
use program::topology::LaneId;
use scheduler::hybrid::IterationShape;
use shm::TraceRecord;

/// A measured iteration, in times of the trace's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MeasuredIteration {
    pub(super) shape: IterationShape,
    /// Number of rows that passed the last layer.
    pub(super) rows: u32,
    /// Time when its contents were decided; requests that arrive later are not considered.
    pub(super) decided_ns: u64,
    /// End of the preceding iteration, or the time when the lanes were released.
    pub(super) begun_ns: u64,
    /// Time when its last lane finished.
    pub(super) ended_ns: u64,
}

/// A lane's pass through a program's list of instructions: the program, and the number of the pass.
type Pass = (ProgramId, u32);

/// Returns the iterations in order. Moves of caches count towards the iteration that follows them.
pub(super) fn group_iterations(plan: &Plan, seen: &ReplayTrace) -> Vec<MeasuredIteration> {
    let mut ends: HashMap<Pass, u64> = HashMap::new();
    // Time when the last stream of each pass was sampled, and the number of rows of all its
    // streams.
    let mut sampled: HashMap<Pass, (u64, u32)> = HashMap::new();
    for (lane, record, pass) in passes(seen) {
        let end = ends.entry(pass).or_default();
        *end = record.end_ns.max(*end);
        let list = plan.program(pass.0).lane(lane);
        let instruction = list.and_then(|list| list.instructions.get(record.instruction as usize));
        if let Some(Instruction::Compute(compute)) = instruction
            && compute.op == Op::Sample
        {
            let (end, rows) = sampled.entry(pass).or_default();
            *end = record.end_ns.max(*end);
            *rows += record.rows;
        }
    }
    let mut in_order: Vec<(Pass, (u64, u32))> = sampled.into_iter().collect();
    in_order.sort_unstable_by_key(|(_, (end, _))| *end);
    let (mut previous_end_ns, mut decided_ns) = (0, 0);
    let iterations = in_order.into_iter().filter_map(|(pass, (sampled_ns, rows))| {
        let released = seen.released_ns.iter().filter(|at| **at < sampled_ns).max().copied()?;
        let ended_ns = ends[&pass];
        let iteration = MeasuredIteration {
            shape: program_shape(pass.0)?,
            rows,
            decided_ns: decided_ns.max(released),
            begun_ns: previous_end_ns.max(released),
            ended_ns,
        };
        (previous_end_ns, decided_ns) = (ended_ns, sampled_ns);
        Some(iteration)
    });
    iterations.collect()
}

/// Returns every record with the pass to which it belongs.
fn passes(seen: &ReplayTrace) -> impl Iterator<Item = (LaneId, &TraceRecord, Pass)> {
    let mut last: HashMap<LaneId, (Pass, u32)> = HashMap::new();
    let mut counts: HashMap<(LaneId, ProgramId), u32> = HashMap::new();
    seen.records.iter().map(move |(lane, record)| {
        let program = ProgramId(record.program as u8);
        let is_same_pass = last
            .get(lane)
            .filter(|(pass, instruction)| pass.0 == program && *instruction < record.instruction);
        let pass = match is_same_pass {
            Some((pass, _)) => *pass,
            None => {
                let count = counts.entry((*lane, program)).or_default();
                *count += 1;
                (program, *count)
            }
        };
        last.insert(*lane, (pass, record.instruction));
        (*lane, record, pass)
    })
}

fn program_shape(program: ProgramId) -> Option<IterationShape> {
    match program {
        ProgramId::STEP => Some(IterationShape::Gpu),
        ProgramId::PIPELINED => Some(IterationShape::Pipelined),
        ProgramId::ASYNC => Some(IterationShape::Async),
        _ => None,
    }
}
