//! Proves a plan before any worker starts.
//!
//! The coordinator calls [`validate`] on every plan; tests also call [`replay()`] on measured
//! traces. Four checks, each in a file, each relying on the ones before:
//!
//! 1. `shape` and `reach`: ids and offsets exist, instructions have the operands their operation
//!    needs, lanes do what their kind may do in the memory of their worker (the table of
//!    [`crate::topology`]), buffers in use at the same time do not share bytes.
//! 2. `order`: lanes are in order and waits only test "at least", so when one interleaving runs to
//!    its end, all do. One is run, over [`STEPS`] consecutive steps, and gives the happens-before
//!    order (vector clocks).
//! 3. `race`: any two instructions that touch overlapping regions, one of them writing, are
//!    ordered, whatever the timing. Two steps suffice: an access two steps later follows, in its
//!    own lane, the same access one step later.
//! 4. `content`: without races what a read finds is determined, so each buffer is followed as the
//!    thing it holds, and each read must find the very value, layer, batch and step it is for. A
//!    missing copy is found here even when its slot still holds something plausible.
//!
//! Between programs all lanes meet at a barrier. What a program relies on there is what each of
//! them leaves: weights in their places, and in the caches the rows of every step.
//!
//! A program of which each step is a stage ([`ProgramShape::is_single_step`]) is followed for one
//! step. Its rows lag: a step finds what the one before left of rows that then had a layer less
//! behind them, and must leave what the next one finds.
//!
//! The limit on running ahead (see [`crate::simulate`]) is not used: a program must be right
//! without.

mod content;
mod describe;
mod error;
mod order;
mod owners;
mod parts;
mod race;
mod reach;
mod replay;
mod shape;

use model::config::ModelConfig;

pub use describe::describe;
pub use error::{Blocked, NamedLane, NamedProgram, Site, ValidateError};
pub use replay::{ReplayError, Replayed, replay};

use crate::ir::{Program, ProgramId, ProgramShape};
use crate::plan::{Buffer, Plan};
use crate::topology::Topology;
use error::Names;

/// Consecutive steps that are looked at; see the module's header for why two are enough.
pub const STEPS: u32 = 2;

/// The same of a program.
fn steps(shape: &ProgramShape) -> u32 {
    if shape.is_single_step() { 1 } else { STEPS }
}

/// What was checked, for reports and for tests that must not pass on nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// By program.
    pub programs: Vec<ProgramProof>,
}

impl Proof {
    /// Of a program.
    pub fn of(&self, program: ProgramId) -> ProgramProof {
        self.programs[program.index()]
    }
}

/// What was checked in one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramProof {
    /// Instructions that are work.
    pub work: usize,
    pub waits: usize,
    /// Pairs of conflicting accesses that were compared, over [`STEPS`] steps; pairs implied by
    /// others are not counted.
    pub conflicts: usize,
}

/// Proves that no lane can deadlock, that no two accesses race, and that every read finds what it
/// is for, in any sequence of the plan's programs, each run for any number of steps.
///
/// # Errors
/// The first thing that does not hold, with the instructions concerned.
pub fn validate(plan: &Plan) -> Result<Proof, ValidateError> {
    shape::check_plan(plan)?;
    let names = (&plan.topology, plan.config.family);
    let proven = plan.programs.iter().map(|program| prove_order(program, &plan.buffers, names));
    let (orders, programs): (Vec<_>, Vec<_>) =
        proven.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    content::check(plan, &orders)?;
    Ok(Proof { programs })
}

/// Proves what can be proved of a program of a model without its plan: that it is well formed, that
/// no lane can deadlock, and that no two accesses race.
///
/// # Errors
/// The first thing that does not hold, with the instructions concerned.
pub fn validate_program(
    program: &Program,
    buffers: &[Buffer],
    topology: &Topology,
    config: &ModelConfig,
) -> Result<ProgramProof, ValidateError> {
    topology.check()?;
    shape::check_program(program, buffers, topology, config)?;
    Ok(prove_order(program, buffers, (topology, config.family))?.1)
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
