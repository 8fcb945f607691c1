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
    /// Second table of tokens, of which rows are read, `[vocab, layers * size]`.
    PerLayerTable,
    /// Linear of the embedding to the inputs of all layers, and the gain of its norm.
    PerLayerProjection,
    /// Linear of the embedding and another model's hidden state, and the gains of their norms.
    JoinHidden,
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
            (Op::PerLayerEmbed, _) => Weights::PerLayerProjection,
            (Op::JoinHidden, _) => Weights::JoinHidden,
            (op, Some(layer)) => Weights::Layer { layer, op: op.weights_op() },
            (_, None) => Weights::Head,
        }
    }

    /// Returns the blobs that an operation reads in addition to its own: tables of which it reads
    /// rows.
    pub fn table_of(op: Op, config: &ModelConfig) -> Option<Weights> {
        match op {
            Op::Embed => config.learned_positions.map(|_| Weights::Positions),
            Op::PerLayerEmbed => Some(Weights::PerLayerTable),
            _ => None,
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
            Weights::PerLayerProjection => Op::PerLayerEmbed.weight_bytes_in(config, dtype, format),
            Weights::JoinHidden => Op::JoinHidden.weight_bytes_in(config, dtype, format),
            Weights::PerLayerTable => config.features.per_layer_inputs.map_or(0, |inputs| {
                let (rows, columns) = (inputs.vocab_size, inputs.row_elements());
                align_up(match format {
                    WeightFormat::Plain => rows * columns * dtype.size_bytes(),
                    WeightFormat::Grouped(grouped) => grouped.size_bytes(rows, columns),
                })
            }),
            Weights::Layer { layer, op } => {
                op.weight_bytes_in(config.of_layer(layer.into()), dtype, format)
            }
        }
    }

    /// Returns the name used in buffer lists and errors.
    pub fn name(self, config: &ModelConfig) -> String {
        match self {
            Weights::Embedding => "weights.embedding".to_owned(),
            Weights::Positions => "weights.positions".to_owned(),
            Weights::FinalNorm => "weights.final_norm".to_owned(),
            Weights::Head => "weights.head".to_owned(),
            Weights::PerLayerTable => "weights.per_layer_table".to_owned(),
            Weights::PerLayerProjection => "weights.per_layer_embed".to_owned(),
            Weights::JoinHidden => "weights.join_hidden".to_owned(),
            Weights::Layer { layer, op } => {
                format!("weights.layer{layer}.{}", op.name(config.family))
            }
        }
    }
}
