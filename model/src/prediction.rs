//! Multi-token prediction: a layer after the last one in a model's files, which predicts the token
//! after the next one from the embedding of the next token and the hidden state of a row. With the
//! embedding and the head of the model, it is a small model of its own.

use serde::{Deserialize, Serialize};

use crate::config::ModelConfig;
use crate::features::Features;
use crate::layers::Layers;

/// Hidden states that a model exchanges with another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenStates {
    /// None.
    #[default]
    Internal,
    /// `Sample` also reads the residual stream of all rows, for a model that predicts from it.
    Sampled,
    /// The model is this layer of the files of another one, whose hidden states are joined with the
    /// embeddings of its rows. `Sample` reads those of its own rows, which are joined with the
    /// embeddings of predicted tokens.
    Joined { layer: usize },
}

impl HiddenStates {
    /// Returns true if `Sample` also reads the residual stream of all rows.
    pub const fn are_sampled(self) -> bool {
        !matches!(self, HiddenStates::Internal)
    }

    /// Returns true if hidden states of another model are joined with the embeddings.
    pub const fn are_joined(self) -> bool {
        matches!(self, HiddenStates::Joined { .. })
    }
}

impl ModelConfig {
    /// Returns the model that consists of the layer for multi-token prediction, with the embedding
    /// and the head of this one; `None` if the files have no such layer.
    pub fn prediction_model(&self) -> Option<ModelConfig> {
        let kind = self.features.prediction_layer.clone()?;
        let features = Features {
            prediction_layer: None,
            hidden_states: HiddenStates::Joined { layer: self.num_layers },
            ..self.features.clone()
        };
        let (num_layers, layers) = (1, Layers::uniform(kind));
        Some(ModelConfig { num_layers, layers, features, ..self.clone() }.with_kind_models())
    }
}
