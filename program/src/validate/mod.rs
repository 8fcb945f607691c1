//! Proves a plan before any worker starts.
//!
//! The coordinator calls [`validate`] on every plan; tests also call [`replay()`] on measured
//! traces. There are four checks, each in its own file and each relying on the previous ones:
//!
//! 1. `shape` and `reach`: ids and offsets exist, instructions have the operands that their
//!    operation needs, lanes do only what their kind permits in the memory of their worker (the
//!    table of [`crate::topology`]), and buffers in use at the same time do not share bytes.
//! 2. `order`: lanes are in order and waits only test "at least", so if one interleaving runs to
//!    its end, all do. One is run, over [`STEPS`] consecutive steps, and yields the happens-before
//!    order (vector clocks).
//! 3. `race`: any two instructions that access overlapping regions, at least one of them writing,
//!    are ordered regardless of timing. Two steps suffice: an access two steps later follows, in
//!    its own lane, the same access one step later.
//! 4. `content`: without races the result of a read is determined, so the content of each buffer is
//!    followed, and each read must find the exact value, layer, batch and step that it needs. A
//!    missing copy is detected even if its slot still holds something plausible.
//!
//! All lanes meet at a barrier between programs. Each program relies there on what every program
//! leaves: weights in their buffers, and in the caches the rows of every step.
//!
//! A program of which each step is a stage ([`ProgramShape::is_single_step`]) is followed for one
//! step. Its rows are deferred: a step reads what the previous one left for rows that had completed
//! one layer less, and must leave what the next one reads.
//!
//! The limit on running ahead (see [`crate::simulate`]) is not used: a program must be correct
//! without it.

mod checkpoints;
mod content;
mod describe;
mod error;
mod expert_cache;
mod kv_owner;
mod order;
mod parts;
mod race;
mod reach;
mod replay;
mod shape;

use model::config::ModelConfig;

pub use describe::describe;
pub use error::{Blocked, NamedLane, NamedProgram, Site, ValidateError};
pub use replay::{ReplayCoverage, ReplayError, replay};

use crate::ir::{Program, ProgramId, ProgramShape};
use crate::plan::{Buffer, Plan};
use crate::topology::Topology;
use error::Names;

/// Number of consecutive steps that are checked; the module documentation explains why two suffice.
pub const STEPS: u32 = 2;

/// Returns the number of steps to check of a program.
fn steps(shape: &ProgramShape) -> u32 {
    if shape.is_single_step() { 1 } else { STEPS }
}

/// Amount of work that was checked, for reports and for tests that must not pass vacuously.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// By program.
    pub programs: Vec<ProgramProof>,
}

impl Proof {
    /// Returns the proof of a program.
    pub fn of(&self, program: ProgramId) -> ProgramProof {
        self.programs[program.index()]
    }
}

/// Amount of work that was checked in one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramProof {
    /// Number of work instructions.
    pub work: usize,
    pub waits: usize,
    /// Number of compared pairs of conflicting accesses, over [`STEPS`] steps; pairs implied by
    /// others are not counted.
    pub conflicts: usize,
}

/// Proves that no lane can deadlock, that no two accesses race, and that every read finds the
/// content it needs, in any sequence of the plan's programs, each run for any number of steps.
///
/// # Errors
/// The first violation, with the instructions concerned.
pub fn validate(plan: &Plan) -> Result<Proof, ValidateError> {
    shape::check_plan(plan)?;
    let names = Names { topology: &plan.topology, family: plan.config.family };
    let proven = plan.programs.iter().map(|program| prove_order(program, &plan.buffers, names));
    let (orders, programs): (Vec<_>, Vec<_>) =
        proven.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    content::check(plan, &orders)?;
    Ok(Proof { programs })
}

/// Proves the properties of a single program that do not depend on its plan: that it is well
/// formed, that no lane can deadlock, and that no two accesses race.
///
/// # Errors
/// The first violation, with the instructions concerned.
pub fn validate_program(
    program: &Program,
    buffers: &[Buffer],
    topology: &Topology,
    config: &ModelConfig,
) -> Result<ProgramProof, ValidateError> {
    topology.check()?;
    shape::check_program(program, buffers, topology, config, None)?;
    let names = Names { topology, family: config.family };
    Ok(prove_order(program, buffers, names)?.1)
}

fn prove_order<'a>(
    program: &'a Program,
    buffers: &[Buffer],
    names: Names<'a>,
) -> Result<(order::Order<'a>, ProgramProof), ValidateError> {
    let order = order::run(program, steps(&program.shape), names)?;
    let conflicts = race::check(&order, buffers)?;
    let all = || program.lanes.iter().flat_map(|lane| &lane.instructions);
    let work = all().filter(|instruction| instruction.is_work()).count();
    let waits = all().filter(|i| matches!(i, crate::ir::Instruction::Wait(_))).count();
    Ok((order, ProgramProof { work, waits, conflicts }))
}

#[cfg(test)]
mod tests;
