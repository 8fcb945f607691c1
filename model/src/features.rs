//! Parts that few models have.

use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;
use crate::hidden_states::HiddenStates;
use crate::indexer::Indexer;
use crate::layers::LayerKind;
use crate::streams::ResidualStreams;
use crate::unified_kv::UnifiedKv;

/// Parts that few models have, by default none.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Each head of v has a norm without a gain.
    pub value_norm: bool,
    /// The residual stream is multiplied by a number at the end of each layer.
    pub layer_scale: bool,
    /// Logits are `cap * tanh(logits / cap)`; `None` for logits as they are.
    pub logit_cap: Option<f32>,
    /// The factor of the embedding is rounded to the run's type.
    pub rounds_embedding_scale: bool,
    /// Inputs that each layer has in addition to the residual stream.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Layers without a window multiply by the matrix of keys for values too.
    pub values_from_keys: bool,
    /// Sizes of the indexers that select positions for latent attention, in the layers that have
    /// one.
    #[serde(default)]
    pub indexer: Option<Indexer>,
    /// The gate of attention's output is one number for each head.
    #[serde(default)]
    pub gates_heads: bool,
    /// Attention with a single KV head that is key and value at once, which all layers then have.
    #[serde(default)]
    pub unified_kv: Option<UnifiedKv>,
    /// Streams of the residual; `None` for a residual of one stream, to which halves of layers are
    /// added.
    #[serde(default)]
    pub streams: Option<ResidualStreams>,
    /// Kind of the layer for multi-token prediction that follows the last one in the model's files;
    /// `None` if there is none.
    #[serde(default)]
    pub prediction_layer: Option<LayerKind>,
    /// Hidden states that enter or leave the model. A property of the run, not of the model.
    #[serde(default)]
    pub hidden_states: HiddenStates,
    /// For each kind of layer, the model with its sizes, in which all layers are of that kind;
    /// empty if kinds differ in nothing that operations depend on. Those of
    /// [`ModelConfig::with_kind_models`] alone are true.
    pub kind_models: Vec<ModelConfig>,
}

impl Features {
    /// Returns the features without what multi-token prediction needs.
    pub(crate) fn without_prediction(&self) -> Features {
        let hidden_states = HiddenStates::Internal;
        Features { prediction_layer: None, hidden_states, ..self.clone() }
    }
}

/// Leaves out the models of kinds, which repeat the rest, and what multi-token prediction needs,
/// and prints the last fields only if the model has them; see the keys of stored data at
/// [`ModelConfig`].
impl Debug for Features {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("Features");
        fields
            .field("value_norm", &self.value_norm)
            .field("layer_scale", &self.layer_scale)
            .field("logit_cap", &self.logit_cap)
            .field("rounds_embedding_scale", &self.rounds_embedding_scale)
            .field("per_layer_inputs", &self.per_layer_inputs)
            .field("values_from_keys", &self.values_from_keys);
        if let Some(indexer) = &self.indexer {
            fields.field("indexer", indexer);
        }
        if self.gates_heads {
            fields.field("gates_heads", &true);
        }
        if let Some(unified_kv) = &self.unified_kv {
            fields.field("unified_kv", unified_kv);
        }
        if let Some(streams) = &self.streams {
            fields.field("streams", streams);
        }
        fields.finish()
    }
}

/// Inputs of the layers that are derived from a row's token: the rows of a second table, plus a
/// linear of the embedding. Each layer has its own part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerLayerInputs {
    /// Number of elements for one layer.
    pub size: usize,
    /// Number of layers of the published model, all of which have a part.
    pub layers: usize,
    pub vocab_size: usize,
}

impl PerLayerInputs {
    /// Returns the number of elements for all layers.
    pub const fn row_elements(&self) -> usize {
        self.size * self.layers
    }
}
