//! Errors of the validator.

use std::fmt;

use model::config::Family;

use crate::ir::{Instruction, Program, ProgramId};
use crate::topology::{LaneId, Topology, TopologyError};

use super::describe::describe;

/// Sources of names in errors: the machine's lanes and the model's operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) topology: &'a Topology,
    pub(super) family: Family,
}

/// A lane with its name, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLane {
    pub id: LaneId,
    pub name: Box<str>,
}

impl NamedLane {
    pub(super) fn new(topology: &Topology, id: LaneId) -> NamedLane {
        NamedLane { id, name: topology.lane_name(id).into() }
    }
}

impl fmt::Display for NamedLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A program with its name, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedProgram {
    pub id: ProgramId,
    pub name: &'static str,
}

impl NamedProgram {
    pub(super) const fn new(program: &Program) -> NamedProgram {
        NamedProgram { id: program.id, name: program.name() }
    }
}

impl fmt::Display for NamedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// An instruction of a program, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    pub program: NamedProgram,
    pub lane: NamedLane,
    /// Index in the lane's list.
    pub instruction: usize,
    /// Index of the consecutive step, from 0.
    pub step: u32,
    /// Operation, layer and batch.
    pub what: Box<str>,
}

impl Site {
    /// Returns the site of an instruction in a program, lane and step.
    pub(super) fn new(
        program: NamedProgram,
        lane: LaneId,
        index: usize,
        step: u32,
        instruction: &Instruction,
        names: Names<'_>,
    ) -> Site {
        let what = describe(instruction, names.family, names.topology).into_boxed_str();
        let lane = NamedLane::new(names.topology, lane);
        Site { program, lane, instruction: index, step, what }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} instruction {} of lane {} ({}) in step {}",
            self.program, self.instruction, self.lane, self.what, self.step
        )
    }
}

/// A lane that cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The wait.
    pub site: Site,
    /// The lane whose signal it waits for.
    pub waits_for: NamedLane,
    /// Number of signals that are needed, counted from the first step.
    pub needed: u32,
    /// Number of signals that were given when no lane could continue.
    pub given: u32,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, needed, given) = (&self.waits_for, self.needed, self.given);
        write!(f, "{} needs signal {needed} of lane {lane}, which gave {given}", self.site)
    }
}

/// Reason for which a plan is refused. A plan of the compiler is never refused: each variant is a
/// defect of the program, not of the user's input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValidateError {
    #[error("the machine's topology is inconsistent: {0}")]
    Topology(#[from] TopologyError),
    #[error("buffer {buffer} is in a segment that the machine does not have")]
    Segment { buffer: Box<str> },
    #[error("{pinned} experts stay in the cache, which must ascend, exist, and fit its slots")]
    PinnedExperts { pinned: usize },
    #[error("program {place} of the plan has number {}", .id.0)]
    ProgramId { place: usize, id: ProgramId },
    #[error("{program}: its samples list rows for program {}, which has no list for them", .next.0)]
    NextProgram { program: NamedProgram, next: ProgramId },
    #[error("{program}: lane {lane} is listed, which the machine does not have")]
    UnknownLane { program: NamedProgram, lane: LaneId },
    #[error("{program}: lane {lane} is listed twice")]
    DuplicateLane { program: NamedProgram, lane: NamedLane },
    #[error(
        "{program}: lane {lane} declares {declared} signals per step, but its list has {found}"
    )]
    SignalCount { program: NamedProgram, lane: NamedLane, declared: u32, found: u32 },
    #[error("{site}: lane {lane} has no work, so it never signals")]
    WaitLane { site: Site, lane: NamedLane },
    #[error("{site}: lane {lane} gives signals 1 to {signals} in a step")]
    WaitOffset { site: Site, lane: NamedLane, signals: u32 },
    #[error("{site}: {problem}")]
    Malformed { site: Site, problem: Box<str> },
    #[error("buffers {first} and {second} share bytes while both are in use in {program}")]
    Overlap { program: NamedProgram, first: Box<str>, second: Box<str> },
    #[error("{what} names buffer {id}, but the plan has {count} buffers")]
    Buffer { what: &'static str, id: u32, count: usize },
    #[error("buffer {buffer} ends past the largest address")]
    BufferRange { buffer: Box<str> },
    #[error("no lane can continue (deadlock or lost signal): {}", list(.blocked))]
    Deadlock { blocked: Vec<Blocked> },
    #[error("race on buffer {buffer}: {second} is not ordered after {first}")]
    Race { buffer: Box<str>, first: Box<Site>, second: Box<Site> },
    #[error("{site} reads {buffer}, which nothing wrote; it needs {needed}")]
    Unwritten { site: Site, buffer: Box<str>, needed: Box<str> },
    #[error(
        "{site} needs {needed} in {buffer}, but finds {found}{}",
        .writer.as_ref().map_or_else(String::new, |writer| format!(", left there by {writer}"))
    )]
    Stale {
        site: Box<Site>,
        buffer: Box<str>,
        needed: Box<str>,
        found: Box<str>,
        /// `None` if the content existed before the program.
        writer: Option<Box<Site>>,
    },
    #[error("{program}: {problem}")]
    Incomplete { program: NamedProgram, problem: Box<str> },
}

fn list(blocked: &[Blocked]) -> String {
    blocked.iter().map(Blocked::to_string).collect::<Vec<_>>().join("; ")
}
