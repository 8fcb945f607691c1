//! First step and stages of a group in a serving run.

use program::ir::ProgramId;
use shm::ProgramStage;

use super::iteration_planner::IterationPlanner;
use super::prompt_lookup::PromptLookup;
use super::serving::{has_running, list_step};
use super::table::StepTable;

/// Stages of a group in a serving run: steps until there is nothing to compute.
pub const SERVING_STAGES: [ProgramStage; 1] =
    [ProgramStage { program: ProgramId::STEP.0 as u32, steps: u32::MAX }];

/// Lists the first step of a group, before it is released. Returns true if there is anything to
/// compute.
pub fn list_first(table: &StepTable) -> bool {
    if table.has_owners() {
        IterationPlanner::new(table.batch_size(), table.device_slots()).list(table);
        return has_running(table);
    }
    let mut sequences = Vec::with_capacity(table.batch_size());
    for batch in 0..table.batches() {
        list_step(table, batch, &mut sequences, &mut PromptLookup);
    }
    has_running(table)
}

/// Returns the stages of a group whose first step is listed. If sequences have owners, each step is
/// a stage, and the sampler announces the following ones.
pub fn stages(table: &StepTable) -> Vec<ProgramStage> {
    if !table.has_owners() {
        return SERVING_STAGES.to_vec();
    }
    table.next_programs().map(single_step).collect()
}

/// Returns a stage of one step of a program.
pub fn single_step(program: ProgramId) -> ProgramStage {
    ProgramStage { program: program.0.into(), steps: 1 }
}
