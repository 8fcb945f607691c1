//! Hidden states that a sample reads next to logits: rows that are pooled, and those from which a
//! layer for multi-token prediction drafts.

use std::sync::PoisonError;

use kernels::Element;
use model::ops::Value;
use program::ir::{At, Compute, ProgramId};
use program::step_table::Field;
use protocol::drafts::HiddenRows;
use protocol::table::StepTable;

use super::operands::Operands;
use crate::shared_drafter::SharedDrafter;
use crate::work_items::{SequenceRows, row_counts, sequences};

/// Hidden states of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampledStates<'a, T> {
    /// The rows of logits after the final norm, `[rows, hidden_size]`; empty if none is pooled.
    pub(super) pooled: &'a [T],
    /// Residual stream of all rows of the stream, `[rows, hidden_size]`; empty if no source of
    /// drafts takes it.
    pub(super) residual: &'a [f32],
}

impl<'a, T: Element> SampledStates<'a, T> {
    /// Reads the inputs of a sample with `rows` rows of logits.
    pub(super) fn read(operands: &Operands<'a>, compute: &Compute, rows: usize) -> Self {
        let Operands { config, table, program, .. } = *operands;
        let [pooled, residual] = match &compute.inputs[1..] {
            [residual] if config.features.hidden_states.are_sampled() => [None, Some(residual)],
            regions => [regions.first(), regions.get(1)],
        };
        let all_rows = row_counts(table, program, compute.at).1;
        let pooled = pooled.map(|region| operands.rows(*region, Value::LastNormed, rows));
        let residual = residual.map(|region| operands.rows(*region, Value::Hidden, all_rows));
        let (pooled, residual) = (pooled.unwrap_or_default(), residual.unwrap_or_default());
        SampledStates { pooled, residual }
    }

    /// Passes the rows of the sequences that have not ended to a source of drafts. The step is
    /// recorded, but the list of its rows is not replaced yet.
    pub(super) fn give_to(
        self,
        drafter: &SharedDrafter,
        table: &StepTable,
        program: ProgramId,
        at: At,
    ) {
        if self.residual.is_empty() {
            return;
        }
        let batch = usize::from(at.batch);
        let hidden_size = self.residual.len() / row_counts(table, program, at).1;
        let mut drafter = drafter.lock().unwrap_or_else(PoisonError::into_inner);
        for SequenceRows { row0, item } in sequences(table, program, at) {
            if !table.is_running(batch, item.slot) {
                continue;
            }
            let computed = table.field(batch, item.slot, Field::Computed) as usize;
            let rows = row0..row0 + computed - item.first;
            let rows = &self.residual[rows.start * hidden_size..rows.end * hidden_size];
            let (slot, first, is_drawn) = (item.slot, item.first, item.samples);
            drafter.take_hidden(table, batch, HiddenRows { slot, first, rows, is_drawn });
        }
    }
}
