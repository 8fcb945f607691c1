//! In which form the weights and the KV cache of a run are kept.
//!
//! The form belongs to the device map, since it decides bytes, and with them where things fit. Both
//! devices compute from the same form with the same meaning, so it never depends on the placement.

use model::compressed::{Bits, Grouped, Scales, WeightFormat, kv4_position_bytes};
use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use serde::{Deserialize, Serialize};

use crate::weights::Weights;

/// The form of every weight matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightFormats {
    /// Also the head of a tied model.
    pub embedding: WeightFormat,
    pub head: WeightFormat,
    /// Per layer, per operation of `ModelConfig::layer_ops`; `Plain` where there is no matrix.
    pub layers: Vec<Vec<WeightFormat>>,
}

impl WeightFormats {
    /// Everything in the run's dtype.
    pub fn plain(config: &ModelConfig) -> WeightFormats {
        WeightFormats::with_layers(config, WeightFormat::Plain)
    }

    /// The linears of the layers in `format`; embedding, head, routers and the rates of states stay
    /// in the run's dtype, since the first is looked up by row, and the others decide between
    /// tokens, between experts, or what is forgotten.
    pub fn with_layers(config: &ModelConfig, format: WeightFormat) -> WeightFormats {
        let of = |op: &Op| match op {
            Op::Router | Op::DeltaBa => WeightFormat::Plain,
            op if op.can_be_grouped(config) => format,
            _ => WeightFormat::Plain,
        };
        let layer = |layer| config.layer_ops(layer).iter().map(of).collect();
        WeightFormats {
            embedding: WeightFormat::Plain,
            head: WeightFormat::Plain,
            layers: (0..config.num_layers).map(layer).collect(),
        }
    }

    /// The form of a blob's matrix.
    pub fn of(&self, config: &ModelConfig, weights: Weights) -> WeightFormat {
        match weights {
            Weights::Embedding => self.embedding,
            Weights::Head if config.tied_embeddings => self.embedding,
            Weights::Head => self.head,
            Weights::Positions | Weights::FinalNorm => WeightFormat::Plain,
            Weights::Layer { layer, op } => {
                let layer = usize::from(layer);
                let place = config.place_in_layer(layer, op);
                place.map_or(WeightFormat::Plain, |place| self.layers[layer][place])
            }
        }
    }

    /// Whether any matrix is kept in fewer bits than the run's dtype.
    pub fn any_grouped(&self) -> bool {
        let grouped = |format: &WeightFormat| *format != WeightFormat::Plain;
        grouped(&self.embedding) || grouped(&self.head) || self.layers.iter().flatten().any(grouped)
    }
}

/// What the GPU widens a matrix of this form to before it multiplies; `None` where it reads the
/// form as it is: plain, 8 bits, and 4 bits with f16 scales and minimums.
pub fn decompressed(format: WeightFormat) -> Option<Grouped> {
    let WeightFormat::Grouped(grouped) = format else { return None };
    match (grouped.bits, grouped.scales) {
        (Bits::Eight, _) | (Bits::Four, Scales::Halves) => None,
        _ => Some(grouped.widened()),
    }
}

/// The form in which a GPU multiplies a matrix that is kept in `stored`.
pub fn on_device(stored: WeightFormat) -> WeightFormat {
    decompressed(stored).map_or(stored, WeightFormat::Grouped)
}

/// Whether a matrix is kept in fewer than 8 bits.
pub fn is_narrow(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Grouped(grouped) if grouped.bits != Bits::Eight)
}

/// The form of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// The run's dtype.
    #[default]
    Plain,
    /// 4-bit groups along the head, quantised when appended.
    Four,
}

impl KvFormat {
    /// Bytes of one position of one KV head, of K or of V.
    ///
    /// # Panics
    /// For 4-bit groups of a head of odd size, which the compiler refuses.
    pub fn position_bytes(self, head_dim: usize, dtype: Dtype) -> usize {
        match self {
            KvFormat::Plain => head_dim * dtype.size_bytes(),
            KvFormat::Four => match kv4_position_bytes(head_dim) {
                Some(bytes) => bytes,
                None => panic!("a head of {head_dim} elements has no 4-bit form"),
            },
        }
    }
}
