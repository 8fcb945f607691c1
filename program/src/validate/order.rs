//! Runs one interleaving of a program and derives the happens-before order from it.

use model::config::Family;

use crate::ir::{Instruction, Lane, LaneProgram, Phase, Program, Wait};

use super::error::{Blocked, Site, ValidateError};

pub(super) const LANES: usize = Lane::ALL.len();

/// Per lane, how many of its instructions (over all steps) are known to be complete.
type Clock = [u32; LANES];

/// One execution of one work instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event<'a> {
    pub(super) instruction: &'a Instruction,
    pub(super) lane: Lane,
    /// In the lane's list.
    pub(super) index: usize,
    pub(super) step: u32,
    /// Number of this instruction in its lane over all steps, from 1.
    position: u32,
    /// What is complete when it starts, itself included.
    clock: Clock,
}

impl Event<'_> {
    /// Whether `self` is complete before `later` starts, in every run.
    pub(super) fn happens_before(&self, later: &Event<'_>) -> bool {
        later.clock[self.lane.index()] >= self.position
    }
}

/// The work of a few consecutive steps in one order that respects happens-before.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) phase: Phase,
    pub(super) events: Vec<Event<'a>>,
}

impl Order<'_> {
    pub(super) fn site(&self, event: &Event<'_>, family: Family) -> Site {
        Site::new(self.phase, event.lane, event.index, event.step, event.instruction, family)
    }
}

/// How many signals of `wait.lane` a wait in `step` needs, counted from the first step.
/// Not positive: it needs none, as with waits of the first step on the step before.
pub(super) fn signals_needed(wait: &Wait, signals_per_step: u32, step: u32) -> i64 {
    let step = i64::from(step) - i64::from(wait.previous_step);
    // A wait on the step before the first is satisfied by the timeline's base.
    if step < 0 { 0 } else { step * i64::from(signals_per_step) + i64::from(wait.offset) }
}

struct Cursor<'a> {
    program: &'a LaneProgram,
    index: usize,
    step: u32,
    position: u32,
    clock: Clock,
    /// The lane's clock at each signal it gave.
    signals: Vec<Clock>,
}

/// Runs every lane as far as it comes, in turn, until all are done.
///
/// # Errors
/// `Deadlock` when lanes are left that can not go on; then no interleaving finishes.
pub(super) fn run(
    program: &Program,
    steps: u32,
    family: Family,
) -> Result<Order<'_>, ValidateError> {
    let mut cursors: Vec<Cursor<'_>> = program
        .lanes
        .iter()
        .map(|program| Cursor {
            program,
            index: 0,
            step: 0,
            position: 0,
            clock: [0; LANES],
            signals: Vec::new(),
        })
        .collect();
    let mut events = Vec::new();
    loop {
        let mut progress = false;
        for lane in 0..cursors.len() {
            while advance(&mut cursors, lane, steps, &mut events) {
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    let blocked: Vec<Blocked> = (0..cursors.len())
        .filter(|lane| cursors[*lane].step < steps)
        .filter_map(|lane| blocked(program.phase, &cursors, lane, family))
        .collect();
    if blocked.is_empty() {
        Ok(Order { phase: program.phase, events })
    } else {
        Err(ValidateError::Deadlock { blocked })
    }
}

/// Executes the next instruction of a lane; `false` when it is done or blocked.
fn advance<'a>(
    cursors: &mut [Cursor<'a>],
    lane: usize,
    steps: u32,
    events: &mut Vec<Event<'a>>,
) -> bool {
    let cursor = &cursors[lane];
    if cursor.step == steps {
        return false;
    }
    let program = cursor.program;
    let Some(instruction) = program.instructions.get(cursor.index) else {
        cursors[lane].index = 0;
        cursors[lane].step += 1;
        return true;
    };
    let learned = match instruction {
        Instruction::Wait(wait) => match satisfied_by(cursors, wait, cursor.step) {
            Some(clock) => clock,
            None => return false,
        },
        _ => [0; LANES],
    };
    let cursor = &mut cursors[lane];
    for (known, other) in cursor.clock.iter_mut().zip(learned) {
        *known = (*known).max(other);
    }
    cursor.position += 1;
    cursor.clock[program.lane.index()] = cursor.position;
    match instruction {
        Instruction::Signal => cursor.signals.push(cursor.clock),
        Instruction::Wait(_) => {}
        _ => events.push(Event {
            instruction,
            lane: program.lane,
            index: cursor.index,
            step: cursor.step,
            position: cursor.position,
            clock: cursor.clock,
        }),
    }
    cursor.index += 1;
    true
}

/// What the signal that satisfies a wait implies; `None` while it was not given.
fn satisfied_by(cursors: &[Cursor<'_>], wait: &Wait, step: u32) -> Option<Clock> {
    let other = cursors.iter().find(|cursor| cursor.program.lane == wait.lane)?;
    let needed = signals_needed(wait, other.program.signals_per_step, step);
    match usize::try_from(needed) {
        Ok(needed) if needed > 0 => other.signals.get(needed - 1).copied(),
        _ => Some([0; LANES]),
    }
}

fn blocked(phase: Phase, cursors: &[Cursor<'_>], lane: usize, family: Family) -> Option<Blocked> {
    let cursor = &cursors[lane];
    let instruction = cursor.program.instructions.get(cursor.index)?;
    let Instruction::Wait(wait) = instruction else { return None };
    let other = cursors.iter().find(|cursor| cursor.program.lane == wait.lane);
    let signals_per_step = other.map_or(0, |other| other.program.signals_per_step);
    let needed = signals_needed(wait, signals_per_step, cursor.step);
    let lane = cursor.program.lane;
    Some(Blocked {
        site: Site::new(phase, lane, cursor.index, cursor.step, instruction, family),
        waits_for: wait.lane,
        needed: u32::try_from(needed).unwrap_or(0),
        given: other.map_or(0, |other| other.signals.len() as u32),
    })
}
