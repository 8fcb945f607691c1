//! Announcement of the end of a step, and with the last one of the end of the group.

use program::ir::ProgramId;
use program::step_table::Field;
use protocol::release::single_step;
use protocol::serving::has_running;
use protocol::table::StepTable;
use shm::Control;

/// Announces the end of step `step` (0 is prefill), after its last `Sample`. Lowers the last step
/// to the number that the running sequences can still need, or to the next one if sufficiently few
/// sequences remain, but never below the step after this one, which lanes may already have begun;
/// then signals `steps` once. A serving run ends its group when no sequence is running.
///
/// `stage` is the index of the stage within the group. If sequences have owners, each step is a
/// stage, and this function announces the following ones.
pub fn announce(control: &Control, table: &StepTable, step: u32, stage: usize) {
    if table.has_owners() {
        let mut stages = [single_step(ProgramId::STEP); 2];
        let follow = table.next_programs().zip(&mut stages);
        let count = follow.map(|(program, stage)| *stage = single_step(program)).count();
        control.follow(stage, &stages[..count]);
        if count == 0 {
            control.set_last_step(Some(step));
        }
        control.steps().signal();
        return;
    }
    if table.serves() {
        if !has_running(table) && control.last_step().is_none_or(|last| step + 1 < last) {
            control.set_last_step(Some(step + 1));
        }
        control.steps().signal();
        return;
    }
    let (mut running, mut longest) = (0, 0);
    for (batch, sequence) in table.slots().filter(|&(batch, slot)| table.is_running(batch, slot)) {
        running += 1;
        longest = longest.max(table.field(batch, sequence, Field::Remaining));
    }
    let remaining = if running <= table.early_end_running() { 1 } else { longest.max(1) };
    let needed = step + remaining;
    if control.last_step().is_none_or(|last| needed < last) {
        control.set_last_step(Some(needed));
    }
    control.steps().signal();
}
