//! Pooling of rows after the final norm into the step table.
//!
//! Rows of a sequence are added one by one in the order of their positions, so that the sum does
//! not depend on how the prompt was divided into steps.

use kernels::Element;
use program::ir::{At, ProgramId};
use program::step_table::{Field, PoolingMode};
use protocol::table::StepTable;

use crate::work_items::{LogitsRow, logits_rows};

/// Adds the rows of an instruction's stream to the pooled rows of their sequences. `hidden` is
/// `[rows, hidden_size]`, the rows whose logits are computed.
pub(super) fn pool_rows<T: Element>(table: &StepTable, program: ProgramId, at: At, hidden: &[T]) {
    let batch = usize::from(at.batch);
    let rows = hidden.chunks_exact(table.pooled_elements());
    for (found, row) in logits_rows(table, program, at).zip(rows) {
        let slot = found.item.slot;
        match table.pooling_mode(batch, slot) {
            PoolingMode::LastRow if is_last_of_prompt(table, batch, found) => {
                table.update_pooled_row(batch, slot, row, |_, element| element.to_f32());
            }
            // A sequence that begins again begins its sum again.
            PoolingMode::AllRows if found.position == 0 => {
                table.update_pooled_row(batch, slot, row, |_, element| element.to_f32());
            }
            PoolingMode::AllRows if is_of_prompt(table, batch, found) => {
                table.update_pooled_row(batch, slot, row, |sum, element| sum + element.to_f32());
            }
            PoolingMode::NoRows | PoolingMode::LastRow | PoolingMode::AllRows => {}
        }
    }
}

/// Returns true if rows of an instruction's stream are pooled.
pub(crate) fn pools_any(table: &StepTable, program: ProgramId, at: At) -> bool {
    let mode = |found: LogitsRow| table.pooling_mode(usize::from(at.batch), found.item.slot);
    logits_rows(table, program, at).any(|found| mode(found) != PoolingMode::NoRows)
}

fn is_of_prompt(table: &StepTable, batch: usize, found: LogitsRow) -> bool {
    found.position < table.field(batch, found.item.slot, Field::PromptLen) as usize
}

fn is_last_of_prompt(table: &StepTable, batch: usize, found: LogitsRow) -> bool {
    found.position + 1 == table.field(batch, found.item.slot, Field::PromptLen) as usize
}
