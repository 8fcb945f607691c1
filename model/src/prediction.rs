//! Multi-token prediction: a layer after the last one in a model's files, which predicts the token
//! after the next one from the embedding of the next token and the hidden state of a row. With the
//! embedding and the head of the model, it is a small model of its own.

use crate::config::ModelConfig;
use crate::features::Features;
use crate::hidden_states::HiddenStates;
use crate::layers::Layers;

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
