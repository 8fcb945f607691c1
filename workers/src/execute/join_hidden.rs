//! Linear of the norms of an embedding and of another model's hidden state.

use std::sync::PoisonError;

use kernels::{Element, Kernels, LinearOut};
use model::config::ModelConfig;
use model::ops::Value;
use program::ir::Compute;

use super::linear;
use super::operands::Operands;
use crate::hidden_store::{RowPlace, SharedHiddenStore};
use crate::work_items::{SequenceRows, sequences};

/// Scratch and source of `JoinHidden`.
#[derive(Debug)]
pub(super) struct JoinHidden {
    store: Option<SharedHiddenStore>,
    /// Hidden states of the rows, `[rows, hidden]`.
    states: Vec<f32>,
    /// Norms of embeddings or hidden states in the run's type, `[rows, hidden]`.
    normed: Vec<u32>,
    /// Both of a row in the run's type, `[rows, 2, hidden]`.
    joined: Vec<u32>,
}

impl JoinHidden {
    /// Allocates for up to `rows` rows; nothing for a model that joins no hidden states.
    pub(super) fn new(config: &ModelConfig, rows: usize) -> JoinHidden {
        let joins = config.features.hidden_states.are_joined();
        let count = if joins { rows * config.hidden_size } else { 0 };
        let (states, normed, joined) = (vec![0.0; count], vec![0; count], vec![0; 2 * count]);
        JoinHidden { store: None, states, normed, joined }
    }

    /// Sets the source of hidden states.
    pub(super) fn set_store(&mut self, store: SharedHiddenStore) {
        self.store = Some(store);
    }

    /// Replaces the embeddings of the rows.
    pub(super) fn run<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) {
        let (hidden, eps) = (operands.config.hidden_size, operands.config.norm_eps);
        let gains = operands.vector(compute, 1).expect("a norm has a gain");
        let (of_embedding, of_state) = gains.split_at(hidden);
        self.read_states(operands, compute);
        let normed = &mut bytemuck::cast_slice_mut::<u32, T>(&mut self.normed)[..rows * hidden];
        let joined = &mut bytemuck::cast_slice_mut::<u32, T>(&mut self.joined)[..2 * rows * hidden];
        let embedding = operands.rows::<f32>(compute.inputs[0], Value::Hidden, rows);
        let states = &self.states[..rows * hidden];
        for (first, x, gain) in [(0, embedding, of_embedding), (hidden, states, of_state)] {
            kernels.rms_norm(rows, hidden, x, gain, eps, None, normed);
            let rows = joined.chunks_exact_mut(2 * hidden).zip(normed.chunks_exact(hidden));
            rows.for_each(|(joined, row)| joined[first..first + hidden].copy_from_slice(row));
        }
        let out = LinearOut::StoreF32(operands.output::<f32>(compute, rows));
        linear::multiply(kernels, operands, compute, rows, joined, out);
    }

    /// Reads the hidden states of an instruction's rows.
    fn read_states(&mut self, operands: &Operands<'_>, compute: &Compute) {
        let Operands { config, table, program, .. } = *operands;
        let Some(store) = &self.store else { panic!("a model that joins hidden states has some") };
        let store = store.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = usize::from(compute.at.batch);
        let mut out = self.states.chunks_exact_mut(config.hidden_size);
        for SequenceRows { item, .. } in sequences(table, program, compute.at) {
            let positions = item.first..item.first + item.rows;
            for (position, out) in positions.zip(&mut out) {
                store.read(table, RowPlace { batch, slot: item.slot, position }, out);
            }
        }
    }
}
