//! Weight blobs of a model, as named by its operations.

use model::config::{Dtype, ModelConfig};
use model::ops::{Op, align_up};
use model::quantized_format::WeightFormat;
use serde::{Deserialize, Serialize};

/// A weight blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Weights {
    Embedding,
    /// Learned positions, `[max_positions + learned_positions, hidden]` in the run's dtype.
    Positions,
    FinalNorm,
    /// Only if it is not tied to the embedding.
    Head,
    Layer {
        layer: u16,
        op: Op,
    },
}

impl Weights {
    /// Returns the blob of an operation.
    pub fn of(op: Op, layer: Option<u16>) -> Weights {
        match (op, layer) {
            (Op::Embed, _) => Weights::Embedding,
            (Op::FinalNorm, _) => Weights::FinalNorm,
            (op, Some(layer)) => Weights::Layer { layer, op: op.weights_op() },
            (_, None) => Weights::Head,
        }
    }

    /// Returns the size of the blob in bytes, a multiple of 64: its matrix in `format`, everything
    /// else in the run's dtype.
    pub fn size_bytes(self, config: &ModelConfig, dtype: Dtype, format: WeightFormat) -> usize {
        match self {
            Weights::Embedding => Op::Embed.weight_bytes_in(config, dtype, format),
            Weights::Positions => {
                align_up(config.learned_position_rows() * config.hidden_size * dtype.size_bytes())
            }
            Weights::FinalNorm => Op::FinalNorm.weight_bytes_in(config, dtype, format),
            Weights::Head => Op::Head.weight_bytes_in(config, dtype, format),
            Weights::Layer { op, .. } => op.weight_bytes_in(config, dtype, format),
        }
    }

    /// Returns the name used in buffer lists and errors.
    pub fn name(self, config: &ModelConfig) -> String {
        match self {
            Weights::Embedding => "weights.embedding".to_owned(),
            Weights::Positions => "weights.positions".to_owned(),
            Weights::FinalNorm => "weights.final_norm".to_owned(),
            Weights::Head => "weights.head".to_owned(),
            Weights::Layer { layer, op } => {
                format!("weights.layer{layer}.{}", op.name(config.family))
            }
        }
    }
}
