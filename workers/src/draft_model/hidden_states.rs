//! Hidden states of the run's sequences, for a draft model that consists of a layer for multi-token
//! prediction.
//!
//! A copy of a sequence begins after the first row that the run computes, whose hidden state is
//! that of the first row of the copy. Rows of a prefix whose keys and values are reused are not
//! computed, so that the copy lacks their tokens: attention's scores depend on distances alone, and
//! the layer predicts from a shorter context.

use std::sync::{Arc, Mutex, PoisonError};

use model::source::{TensorId, TensorPart};
use program::plan::Plan;
use protocol::messages::WeightsOrigin;
use protocol::table::StepTable;

use crate::hidden_store::{HiddenStore, RowPlace, SharedHiddenStore};
use crate::load::{LoadError, OpenWeights};

/// Hidden states, and the norm that they pass.
#[derive(Debug)]
pub(super) struct HiddenStates {
    store: SharedHiddenStore,
    /// Gain of the run's last norm.
    gain: Vec<f32>,
    eps: f32,
    /// Scratch for a row.
    normed: Vec<f32>,
}

impl HiddenStates {
    /// Allocates for the caches of `plan`, and reads the gain of the last norm of the run's model.
    ///
    /// # Errors
    /// Returns an error if the gain cannot be read.
    pub(super) fn new(
        plan: &Plan,
        run: &Plan,
        weights: &WeightsOrigin,
        open: &OpenWeights,
    ) -> Result<HiddenStates, LoadError> {
        let mut gain = vec![0.0; run.config.hidden_size];
        let id = TensorId::FinalNorm { part: TensorPart::Gain };
        open(weights, &run.config)?.read_f32(id, 0, &mut gain)?;
        let store = Arc::new(Mutex::new(HiddenStore::new(plan)));
        let normed = vec![0.0; gain.len()];
        Ok(HiddenStates { store, gain, eps: run.config.norm_eps, normed })
    }

    /// Returns the rows that the model reads.
    pub(super) const fn store(&self) -> &SharedHiddenStore {
        &self.store
    }

    /// Returns the number of elements of a row.
    pub(super) const fn hidden_size(&self) -> usize {
        self.gain.len()
    }

    /// Stores a row after the run's last norm.
    pub(super) fn write(&mut self, table: &StepTable, place: RowPlace, row: &[f32]) {
        let mean = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        let scale = 1.0 / (mean + self.eps).sqrt();
        for ((out, x), gain) in self.normed.iter_mut().zip(row).zip(&self.gain) {
            *out = x * scale * gain;
        }
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.write(table, place, &self.normed);
    }
}
