//! Runs one interleaving of a program and derives the happens-before order from it.

use crate::ir::{Instruction, LaneProgram, Program, TimelineWait};
use crate::topology::LaneId;

use super::error::{Blocked, NamedLane, NamedProgram, Names, Site, ValidateError};

/// Vector clocks, stored consecutively. A clock gives, for each lane, how many of its instructions
/// (over all steps) are known to be complete.
#[derive(Debug)]
struct Clocks {
    lanes: usize,
    counts: Vec<u32>,
}

/// Index of a clock's first word.
type ClockId = usize;

impl Clocks {
    fn keep(&mut self, clock: &[u32]) -> ClockId {
        self.counts.extend_from_slice(clock);
        self.counts.len() - self.lanes
    }

    fn of(&self, id: ClockId) -> &[u32] {
        &self.counts[id..id + self.lanes]
    }
}

/// One execution of one work instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event<'a> {
    pub(super) instruction: &'a Instruction,
    pub(super) lane: LaneId,
    /// Index in the lane's list.
    pub(super) index: usize,
    pub(super) step: u32,
    /// Number of this instruction in its lane over all steps, from 1.
    position: u32,
    /// Clock of the work that is complete when it starts, itself included.
    clock: ClockId,
}

/// The work of a few consecutive steps in one order that respects happens-before.
#[derive(Debug)]
pub(super) struct Order<'a> {
    pub(super) program: &'a Program,
    pub(super) events: Vec<Event<'a>>,
    clocks: Clocks,
    names: Names<'a>,
}

impl Order<'_> {
    /// Returns true if `first` is complete before `later` starts, in every run.
    pub(super) fn happens_before(&self, first: &Event<'_>, later: &Event<'_>) -> bool {
        self.clocks.of(later.clock)[first.lane.index()] >= first.position
    }

    pub(super) fn site(&self, event: &Event<'_>) -> Site {
        let program = NamedProgram::new(self.program);
        let Event { lane, index, step, instruction, .. } = *event;
        Site::new(program, lane, index, step, instruction, self.names)
    }
}

/// Returns the number of signals of `wait.lane` that a wait in `step` needs, counted from the first
/// step. Zero or negative if it needs none, like waits of the first step for the previous step.
pub(super) fn signals_needed(wait: &TimelineWait, signals_per_step: u32, step: u32) -> i64 {
    let step = i64::from(step) - i64::from(wait.previous_step);
    // A wait for the step before the first is satisfied by the timeline's base.
    if step < 0 { 0 } else { step * i64::from(signals_per_step) + i64::from(wait.offset) }
}

struct Cursor<'a> {
    program: &'a LaneProgram,
    index: usize,
    step: u32,
    position: u32,
    clock: Vec<u32>,
    /// The lane's clock at each of its signals.
    signals: Vec<ClockId>,
}

/// Runs every lane as far as possible, in turn, until all are done.
///
/// # Errors
/// `Deadlock` if lanes remain that cannot continue; then no interleaving finishes.
pub(super) fn run<'a>(
    program: &'a Program,
    steps: u32,
    names: Names<'a>,
) -> Result<Order<'a>, ValidateError> {
    let lanes = names.topology.lanes.len();
    let mut cursors: Vec<Cursor<'_>> = program
        .lanes
        .iter()
        .map(|program| Cursor {
            program,
            index: 0,
            step: 0,
            position: 0,
            clock: vec![0; lanes],
            signals: Vec::new(),
        })
        .collect();
    let mut order =
        Order { program, events: Vec::new(), clocks: Clocks { lanes, counts: Vec::new() }, names };
    loop {
        let mut progress = false;
        for lane in 0..cursors.len() {
            while advance(&mut cursors, lane, steps, &mut order) {
                progress = true;
            }
        }
        if !progress {
            break;
        }
    }
    let blocked: Vec<Blocked> = (0..cursors.len())
        .filter(|lane| cursors[*lane].step < steps)
        .filter_map(|lane| blocked(NamedProgram::new(program), &cursors, lane, names))
        .collect();
    if blocked.is_empty() { Ok(order) } else { Err(ValidateError::Deadlock { blocked }) }
}

/// Executes the next instruction of a lane; returns `false` if the lane is done or blocked.
fn advance<'a>(cursors: &mut [Cursor<'a>], lane: usize, steps: u32, order: &mut Order<'a>) -> bool {
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
            Satisfied::By(clock) => clock,
            Satisfied::Not => return false,
        },
        _ => None,
    };
    let cursor = &mut cursors[lane];
    let learned = learned.map_or(&[][..], |clock| order.clocks.of(clock));
    for (known, other) in cursor.clock.iter_mut().zip(learned) {
        *known = (*known).max(*other);
    }
    cursor.position += 1;
    cursor.clock[program.lane.index()] = cursor.position;
    match instruction {
        Instruction::Signal => cursor.signals.push(order.clocks.keep(&cursor.clock)),
        Instruction::Wait(_) => {}
        _ => order.events.push(Event {
            instruction,
            lane: program.lane,
            index: cursor.index,
            step: cursor.step,
            position: cursor.position,
            clock: order.clocks.keep(&cursor.clock),
        }),
    }
    cursor.index += 1;
    true
}

/// Result of testing a wait.
enum Satisfied {
    Not,
    /// Satisfied, with the clock implied by the signal, or `None` if no signal is needed.
    By(Option<ClockId>),
}

fn satisfied_by(cursors: &[Cursor<'_>], wait: &TimelineWait, step: u32) -> Satisfied {
    let other = cursors.iter().find(|cursor| cursor.program.lane == wait.lane);
    let Some(other) = other else { return Satisfied::Not };
    let needed = signals_needed(wait, other.program.signals_per_step, step);
    match usize::try_from(needed) {
        Ok(needed) if needed > 0 => match other.signals.get(needed - 1) {
            Some(clock) => Satisfied::By(Some(*clock)),
            None => Satisfied::Not,
        },
        _ => Satisfied::By(None),
    }
}

fn blocked(
    program: NamedProgram,
    cursors: &[Cursor<'_>],
    lane: usize,
    names: Names<'_>,
) -> Option<Blocked> {
    let cursor = &cursors[lane];
    let instruction = cursor.program.instructions.get(cursor.index)?;
    let Instruction::Wait(wait) = instruction else { return None };
    let other = cursors.iter().find(|cursor| cursor.program.lane == wait.lane);
    let signals_per_step = other.map_or(0, |other| other.program.signals_per_step);
    let needed = signals_needed(wait, signals_per_step, cursor.step);
    let lane = cursor.program.lane;
    Some(Blocked {
        site: Site::new(program, lane, cursor.index, cursor.step, instruction, names),
        waits_for: NamedLane::new(names.topology, wait.lane),
        needed: u32::try_from(needed).unwrap_or(0),
        given: other.map_or(0, |other| other.signals.len() as u32),
    })
}
