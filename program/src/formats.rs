//! Formats in which the weights and the KV cache of a run are stored.
//!
//! The format is part of the device map, since it determines sizes and therefore what fits where.
//! Both devices compute from the same format with the same meaning, so it never depends on the
//! placement.

use std::fmt::{Debug, Formatter};

use model::config::{Dtype, ModelConfig};
use model::ops::Op;
use model::quantized_format::{
    ActivationFormat, Bits, Grouped, KvRecordFormat, ScaleLayout, WeightFormat,
};
use serde::{Deserialize, Serialize};

use crate::weights::Weights;

/// Format of every weight matrix, and of activations where they are multiplied by low-bit ones.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightFormats {
    /// Format of the embedding, which is also the head of a tied model.
    pub embedding: WeightFormat,
    pub head: WeightFormat,
    /// Format of the table of inputs of the layers; `Plain` without one.
    pub per_layer_table: WeightFormat,
    /// Formats per layer and per operation of `ModelConfig::layer_ops`; `Plain` if there is no
    /// matrix.
    pub layers: Vec<Vec<WeightFormat>>,
    /// Rounding of activations that are multiplied by low-bit matrices.
    #[serde(default)]
    pub activations: ActivationFormat,
}

/// Prints the format of the table of inputs only if it is not plain, and that of activations only
/// if they are multiplied by a matrix that is not, since keys of stored data are derived from this
/// text: a field that a model does not use must not change them.
impl Debug for WeightFormats {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let WeightFormats { embedding, head, per_layer_table, layers, activations } = self;
        let mut fields = f.debug_struct("WeightFormats");
        fields.field("embedding", embedding).field("head", head);
        if *per_layer_table != WeightFormat::Plain {
            fields.field("per_layer_table", per_layer_table);
        }
        fields.field("layers", layers);
        if self.any_grouped() {
            fields.field("activations", activations);
        }
        fields.finish()
    }
}

impl WeightFormats {
    /// Returns formats that store everything in the run's dtype.
    pub fn plain(config: &ModelConfig) -> WeightFormats {
        WeightFormats::with_layers(config, WeightFormat::Plain)
    }

    /// Returns formats that store the linears of the layers in `format`. Embedding, head, routers
    /// and the decay rates of states stay in the run's dtype: the embedding is looked up by row,
    /// and the others decide between tokens, between experts, or what is forgotten.
    pub fn with_layers(config: &ModelConfig, format: WeightFormat) -> WeightFormats {
        let of = |config: &ModelConfig, op: &Op| match op {
            Op::StreamMap0 | Op::StreamMap1 => WeightFormat::Plain,
            Op::Router | Op::DeltaBa | Op::DeltaDecayDown | Op::DeltaDecay => WeightFormat::Plain,
            op if op.can_be_grouped(config) => format,
            _ => WeightFormat::Plain,
        };
        let layer = |layer| {
            let model = config.of_layer(layer);
            config.layer_ops(layer).iter().map(|op| of(model, op)).collect()
        };
        WeightFormats {
            embedding: WeightFormat::Plain,
            head: WeightFormat::Plain,
            per_layer_table: WeightFormat::Plain,
            layers: (0..config.num_layers).map(layer).collect(),
            activations: ActivationFormat::default(),
        }
    }

    /// Returns the format of a blob's matrix.
    pub fn of(&self, config: &ModelConfig, weights: Weights) -> WeightFormat {
        match weights {
            Weights::Embedding => self.embedding,
            Weights::Head if config.tied_embeddings => self.embedding,
            Weights::Head => self.head,
            Weights::PerLayerTable => self.per_layer_table,
            Weights::Positions
            | Weights::FinalNorm
            | Weights::PerLayerProjection
            | Weights::JoinHidden => WeightFormat::Plain,
            Weights::Layer { layer, op } => {
                let layer = usize::from(layer);
                let place = config.index_in_layer(layer, op);
                place.map_or(WeightFormat::Plain, |place| self.layers[layer][place])
            }
        }
    }

    /// Returns true if any matrix is stored in fewer bits than the run's dtype.
    pub fn any_grouped(&self) -> bool {
        let grouped = |format: &WeightFormat| *format != WeightFormat::Plain;
        let outer = [self.embedding, self.head, self.per_layer_table];
        outer.iter().any(grouped) || self.layers.iter().flatten().any(grouped)
    }
}

/// Formats of files that the GPU multiplies as they are stored, besides 8 bits and 4 bits with f16
/// scales and minimums.
pub const MULTIPLIED_AS_STORED: [Grouped; 8] = [
    Grouped::GGUF_Q4_K,
    Grouped::GGUF_Q5_K,
    Grouped::GGUF_Q6_K,
    Grouped::GGUF_Q5_0,
    Grouped::GGUF_Q5_1,
    Grouped::GGUF_IQ4_NL,
    Grouped::GGUF_IQ4_XS,
    Grouped::GGUF_MXFP4,
];

/// Returns the format to which the GPU expands a matrix before multiplying it, or `None` if it
/// reads the format directly: plain, 8 bits, 4 bits with f16 scales and minimums, and
/// [`MULTIPLIED_AS_STORED`].
pub fn decompressed(format: WeightFormat) -> Option<Grouped> {
    let WeightFormat::Grouped(grouped) = format else { return None };
    match (grouped.bits, grouped.scales) {
        (Bits::Eight, _) | (Bits::Four, ScaleLayout::Halves) => None,
        _ if MULTIPLIED_AS_STORED.contains(&grouped) => None,
        _ => Some(grouped.widened()),
    }
}

/// Returns the format in which a GPU multiplies a matrix stored as `stored`.
pub fn on_device(stored: WeightFormat) -> WeightFormat {
    decompressed(stored).map_or(stored, WeightFormat::Grouped)
}

/// Returns true if a matrix is stored in fewer than 8 bits.
pub fn is_narrow(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Grouped(grouped) if grouped.bits != Bits::Eight)
}

/// Format of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// The run's dtype.
    #[default]
    Plain,
    /// 4-bit groups along the head, quantised on append.
    Four,
    /// 8-bit groups along the head, quantised on append.
    Eight,
}

impl KvFormat {
    /// Returns the format of the records of a quantised cache.
    pub const fn record_format(self) -> Option<KvRecordFormat> {
        match self {
            KvFormat::Plain => None,
            KvFormat::Four => Some(KvRecordFormat::Four),
            KvFormat::Eight => Some(KvRecordFormat::Eight),
        }
    }

    /// Returns the bytes of one position of one KV head, for K or V.
    ///
    /// # Panics
    /// For records of a head of odd size, which the compiler refuses.
    pub fn position_bytes(self, head_dim: usize, dtype: Dtype) -> usize {
        let Some(format) = self.record_format() else { return head_dim * dtype.size_bytes() };
        match format.position_bytes(head_dim) {
            Some(bytes) => bytes,
            None => panic!("a head of {head_dim} elements has no {}-bit form", format.bits()),
        }
    }
}
