//! First step and stages of a group in a serving run.

use program::ir::ProgramId;
use shm::Stage;

use super::iterations::Iterations;
use super::serving::{any_runs, list_step};
use super::table::StepTable;

/// Stages of a group in a serving run: steps until there is nothing to compute.
pub const SERVE: [Stage; 1] = [Stage { program: ProgramId::STEP.0 as u32, steps: u32::MAX }];

/// Lists the first step of a group, before it is released. Returns true if there is anything to
/// compute.
pub fn list_first(table: &StepTable) -> bool {
    if table.has_owners() {
        Iterations::new(table.batch_size(), table.device_slots()).list(table);
        return any_runs(table);
    }
    let mut sequences = Vec::with_capacity(table.batch_size());
    (0..table.batches()).for_each(|batch| list_step(table, batch, &mut sequences));
    any_runs(table)
}

/// Returns the stages of a group whose first step is listed. If sequences have owners, each step is
/// a stage, and the sampler announces the following ones.
pub fn stages(table: &StepTable) -> Vec<Stage> {
    if !table.has_owners() {
        return SERVE.to_vec();
    }
    table.following().map(once).collect()
}

/// Returns a stage of one step of a program.
pub(crate) fn once(program: ProgramId) -> Stage {
    Stage { program: program.0.into(), steps: 1 }
}
