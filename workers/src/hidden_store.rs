//! Hidden states of a run's sequences, from which a model predicts further tokens: a row for each
//! position of the model's caches, in the pages of these.

use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;
use model::config::Dtype;
use program::plan::Plan;
use protocol::drafts::{Drafter, HiddenRows};
use protocol::table::StepTable;
use scheduler::Sequence;

/// Hidden states that a lane reads while the lane that writes them waits for it.
pub(crate) type SharedHiddenStore = Arc<Mutex<HiddenStore>>;

/// Rows `[pages, page_positions, hidden_size]` in the run's type.
#[derive(Debug)]
pub(crate) struct HiddenStore {
    elements: Elements,
    hidden_size: usize,
    page_positions: usize,
}

#[derive(Debug)]
enum Elements {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

/// Place of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPlace {
    pub(crate) batch: usize,
    pub(crate) slot: usize,
    pub(crate) position: usize,
}

impl HiddenStore {
    /// Allocates a row of zeros for each position of the caches of `plan`, which are paged.
    pub(crate) fn new(plan: &Plan) -> HiddenStore {
        let (hidden_size, shape) = (plan.config.hidden_size, &plan.shape);
        let page_positions = shape.page_positions as usize;
        let count = shape.kv_pages as usize * page_positions * hidden_size;
        let elements = match shape.dtype {
            Dtype::F32 => Elements::F32(vec![0.0; count]),
            Dtype::Bf16 => Elements::Bf16(vec![bf16::ZERO; count]),
        };
        HiddenStore { elements, hidden_size, page_positions }
    }

    /// Returns the index of the first element of a row, whose page is in `table`.
    fn first_element(&self, table: &StepTable, place: RowPlace) -> usize {
        let RowPlace { batch, slot, position } = place;
        let page = table.page(batch, slot, position / self.page_positions) as usize;
        (page * self.page_positions + position % self.page_positions) * self.hidden_size
    }

    /// Reads a row.
    pub(crate) fn read(&self, table: &StepTable, place: RowPlace, out: &mut [f32]) {
        let first = self.first_element(table, place);
        let range = first..first + self.hidden_size;
        match &self.elements {
            Elements::F32(elements) => out.copy_from_slice(&elements[range]),
            Elements::Bf16(elements) => {
                let row = out.iter_mut().zip(&elements[range]);
                row.for_each(|(out, element)| *out = element.to_f32());
            }
        }
    }

    /// Writes a row, rounded to the run's type.
    pub(crate) fn write(&mut self, table: &StepTable, place: RowPlace, row: &[f32]) {
        let first = self.first_element(table, place);
        let range = first..first + self.hidden_size;
        match &mut self.elements {
            Elements::F32(elements) => elements[range].copy_from_slice(row),
            Elements::Bf16(elements) => {
                let row = elements[range].iter_mut().zip(row);
                row.for_each(|(element, value)| *element = bf16::from_f32(*value));
            }
        }
    }
}

/// Keeps the output of a layer for multi-token prediction as the hidden state of the token that was
/// drawn from it, so that the token after that can be predicted too.
#[derive(Debug)]
pub(crate) struct PredictedStates(pub(crate) SharedHiddenStore);

impl Drafter for PredictedStates {
    fn draft(&mut self, _table: &StepTable, _batch: usize, _sequences: &mut [Sequence]) {}

    fn take_hidden(&mut self, table: &StepTable, batch: usize, hidden: HiddenRows<'_>) {
        let mut store = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let HiddenRows { slot, first, rows, is_drawn } = hidden;
        let count = rows.len() / store.hidden_size;
        if let Some(last) = rows.chunks_exact(store.hidden_size).next_back().filter(|_| is_drawn) {
            store.write(table, RowPlace { batch, slot, position: first + count }, last);
        }
    }
}
