//! Importance of the columns of matrices, by the tensors' names in a GGUF file.

use std::collections::HashMap;

use model::config::ModelConfig;
use model::source::TensorId;
use model::source::gguf::export::matrix_names;

use crate::encode::ColumnWeights;

/// Importance of the columns of all matrices for which it was measured.
#[derive(Debug, Default)]
pub struct Importance {
    /// Weights of each expert, or of the only matrix; `None` where no row was routed.
    matrices: HashMap<String, Vec<Option<ColumnWeights>>>,
    unrouted_experts: usize,
}

impl Importance {
    /// Converts sums of squared inputs: for each matrix of the model the sums of its experts, or
    /// of the only matrix.
    pub fn from_sums(config: &ModelConfig, sums: &HashMap<TensorId, Vec<Vec<f64>>>) -> Importance {
        let named = matrix_names(config).into_iter().filter_map(|(id, name)| {
            let weights = sums.get(&id)?.iter().map(|sums| ColumnWeights::from_sums(sums));
            Some((name, weights.collect()))
        });
        let experts = sums.values().flatten();
        let unrouted = experts.filter(|sums| ColumnWeights::from_sums(sums).is_none());
        Importance { matrices: named.collect(), unrouted_experts: unrouted.count() }
    }

    /// Returns the weights of a matrix of `columns` columns; `None` if they were not measured.
    pub(crate) fn weights(
        &self,
        name: &str,
        expert: usize,
        columns: usize,
    ) -> Option<&ColumnWeights> {
        let weights = self.matrices.get(name)?.get(expert)?.as_ref();
        weights.filter(|weights| weights.len() == columns)
    }

    /// Returns the number of matrices of experts to which no row was routed.
    pub fn unrouted_experts(&self) -> usize {
        self.unrouted_experts
    }

    /// Returns true if nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.matrices.is_empty()
    }
}
