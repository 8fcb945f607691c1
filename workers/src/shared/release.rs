//! What a group of a run that serves begins with.

use program::ir::ProgramId;
use shm::Stage;

use super::iterations::Iterations;
use super::serving::{any_runs, list_step};
use super::table::StepTable;

/// A group of a run that serves: steps until there is nothing to compute.
pub const SERVE: [Stage; 1] = [Stage { program: ProgramId::STEP.0 as u32, steps: u32::MAX }];

/// Lists the first step of a group, before it is released; whether there is anything to compute.
pub fn list_first(table: &StepTable) -> bool {
    if table.has_owners() {
        Iterations::new(table.batch_size(), table.device_slots()).list(table);
        return any_runs(table);
    }
    let mut sequences = Vec::with_capacity(table.batch_size());
    (0..table.batches()).for_each(|batch| list_step(table, batch, &mut sequences));
    any_runs(table)
}

/// The stages of a group whose first step is listed. Where sequences have owners each step is a
/// stage, and whoever samples says which follow.
pub fn stages(table: &StepTable) -> Vec<Stage> {
    if !table.has_owners() {
        return SERVE.to_vec();
    }
    table.following().map(once).collect()
}

/// One step of a program.
pub(crate) fn once(program: ProgramId) -> Stage {
    Stage { program: program.0.into(), steps: 1 }
}
