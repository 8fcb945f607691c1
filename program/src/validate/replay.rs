//! Checks that a measured or simulated trace is a run that the plan permits.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{Instruction, Program, Region};
use crate::plan::Plan;
use crate::simulate::Span;
use crate::topology::LaneId;

use super::error::NamedProgram;

/// Amount of a trace that was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayCoverage {
    pub spans: usize,
    /// Number of waits whose signalled work is in the trace.
    pub waits: usize,
    /// Number of accesses that ended before a later access to the same buffer started.
    pub separated: usize,
}

/// Deviation of a trace from its plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("{0:?} is not a work instruction of the plan")]
    Unknown(Span),
    #[error("{0:?} ends before it starts")]
    Backwards(Span),
    #[error("lane {} runs {second:?} before {first:?} has ended", .first.lane)]
    LaneOrder { first: Span, second: Span },
    #[error("{second:?} waits for {first:?}, but starts before that has ended")]
    Wait { first: Span, second: Span },
    #[error("{first:?} and {second:?} touch buffer {buffer} at the same time")]
    Conflict { buffer: Box<str>, first: Span, second: Span },
    #[error("{second:?} of {then} starts before {first:?} of {before} has ended")]
    Barrier { before: NamedProgram, first: Span, then: NamedProgram, second: Span },
}

/// Checks the spans of one group against the plan: each lane in the order of its list, every wait
/// respected, no two conflicting instructions at the same time, and the programs consecutive, in
/// the order of the plan.
///
/// The trace may have gaps (a full ring loses records); the spans that exist are checked.
///
/// # Errors
/// The first deviation.
pub fn replay(plan: &Plan, trace: &[Span]) -> Result<ReplayCoverage, ReplayError> {
    let mut replayed = ReplayCoverage { spans: trace.len(), ..ReplayCoverage::default() };
    let mut last: Option<(NamedProgram, Span)> = None;
    for program in &plan.programs {
        let spans: Vec<Span> =
            trace.iter().filter(|span| span.program == program.id).copied().collect();
        let by_lane = by_lane(program, &spans)?;
        for lane in &program.lanes {
            let own = &by_lane[&lane.lane];
            replayed.waits += check_waits(program, lane.lane, own, &by_lane)?;
        }
        replayed.separated += check_conflicts(plan, program, &spans)?;
        let first = spans.iter().min_by_key(|span| span.start_ns);
        let then = NamedProgram::new(program);
        if let (Some((before, ended)), Some(first)) = (last, first)
            && first.start_ns < ended.end_ns
        {
            return Err(ReplayError::Barrier { before, first: ended, then, second: *first });
        }
        last = spans.into_iter().max_by_key(|span| span.end_ns).map(|span| (then, span)).or(last);
    }
    Ok(replayed)
}

/// Returns the spans of each lane in program order, verified to be in temporal order.
fn by_lane(program: &Program, spans: &[Span]) -> Result<BTreeMap<LaneId, Vec<Span>>, ReplayError> {
    let mut lanes: BTreeMap<LaneId, Vec<Span>> =
        program.lanes.iter().map(|lane| (lane.lane, Vec::new())).collect();
    for span in spans {
        let known = instruction(program, span).is_some_and(Instruction::is_work);
        let Some(list) = lanes.get_mut(&span.lane).filter(|_| known) else {
            return Err(ReplayError::Unknown(*span));
        };
        if span.end_ns < span.start_ns {
            return Err(ReplayError::Backwards(*span));
        }
        list.push(*span);
    }
    for list in lanes.values_mut() {
        list.sort_by_key(|span| (span.step, span.instruction));
        for pair in list.windows(2) {
            let twice = (pair[0].step, pair[0].instruction) == (pair[1].step, pair[1].instruction);
            if twice || pair[1].start_ns < pair[0].end_ns {
                return Err(ReplayError::LaneOrder { first: pair[0], second: pair[1] });
            }
        }
    }
    Ok(lanes)
}

fn instruction<'a>(program: &'a Program, span: &Span) -> Option<&'a Instruction> {
    program.lane(span.lane)?.instructions.get(span.instruction as usize)
}

/// Checks that every span after a wait starts after the work before the signal has ended.
fn check_waits(
    program: &Program,
    lane: LaneId,
    own: &[Span],
    by_lane: &BTreeMap<LaneId, Vec<Span>>,
) -> Result<usize, ReplayError> {
    let Some(list) = program.lane(lane) else { return Ok(0) };
    let steps: BTreeSet<u32> = own.iter().map(|span| span.step).collect();
    let mut checked = 0;
    for (index, instruction) in list.instructions.iter().enumerate() {
        let Instruction::Wait(wait) = instruction else { continue };
        let (Some(other), Some(others)) = (program.lane(wait.lane), by_lane.get(&wait.lane)) else {
            continue;
        };
        let Some(signal) = signal_index(&other.instructions, wait.offset) else { continue };
        for step in &steps {
            let Some(signal_step) = step.checked_sub(u32::from(wait.previous_step)) else {
                continue;
            };
            let Some(second) = own.get(before(own, *step, index)) else { continue };
            let ended = before(others, signal_step, signal);
            let Some(first) = ended.checked_sub(1).map(|last| others[last]) else { continue };
            checked += 1;
            if second.start_ns < first.end_ns {
                return Err(ReplayError::Wait { first, second: *second });
            }
        }
    }
    Ok(checked)
}

/// Returns the number of spans of a lane before an instruction of a step.
fn before(spans: &[Span], step: u32, index: usize) -> usize {
    spans.partition_point(|span| (span.step, span.instruction as usize) < (step, index))
}

/// Returns the index at which a list gives its signal number `offset`, from 1.
fn signal_index(instructions: &[Instruction], offset: u32) -> Option<usize> {
    let mut signals = instructions.iter().enumerate().filter(|(_, i)| **i == Instruction::Signal);
    signals.nth(offset.checked_sub(1)? as usize).map(|(index, _)| index)
}

struct Use {
    span: Span,
    region: Region,
    write: bool,
}

/// Checks that no two conflicting accesses overlap in time.
fn check_conflicts(plan: &Plan, program: &Program, spans: &[Span]) -> Result<usize, ReplayError> {
    let mut uses: Vec<Vec<Use>> = plan.buffers.iter().map(|_| Vec::new()).collect();
    let mut ordered = spans.to_vec();
    ordered.sort_by_key(|span| (span.start_ns, span.end_ns));
    let mut compared = 0;
    for span in ordered {
        let Some(instruction) = instruction(program, &span) else { continue };
        let reads = instruction.reads().into_iter().map(|region| (region, false));
        let writes = instruction.writes().into_iter().map(|region| (region, true));
        for (region, write) in reads.chain(writes) {
            let list = &mut uses[region.buffer.0 as usize];
            // A span that ended before this one starts cannot overlap a later one either.
            let before = list.len();
            list.retain(|other| other.span.end_ns > span.start_ns);
            compared += before - list.len();
            let clash = list.iter().find(|other| {
                other.span != span && (write || other.write) && other.region.overlaps(&region)
            });
            if let Some(other) = clash {
                return Err(ReplayError::Conflict {
                    buffer: plan.buffer(region.buffer).name.as_str().into(),
                    first: other.span,
                    second: span,
                });
            }
            list.push(Use { span, region, write });
        }
    }
    Ok(compared)
}
