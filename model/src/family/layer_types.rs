//! The field `layer_types`, which tells layers that attend to all positions from others.

use serde_json::Value;

use crate::config_fields::{ConfigError, wrong};

/// Type of the layers of a model that do not attend to all positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerType {
    name: &'static str,
    /// Description of the field for errors.
    expected: &'static str,
}

impl LayerType {
    const WINDOW: LayerType = LayerType {
        name: "sliding_attention",
        expected: "full_attention or sliding_attention for each layer",
    };
    pub(super) const STATE: LayerType = LayerType {
        name: "linear_attention",
        expected: "linear_attention or full_attention for each layer",
    };
    pub(super) const CONVOLUTION: LayerType =
        LayerType { name: "conv", expected: "conv or full_attention for each layer" };

    /// Returns a flag per layer that is true if it is of this type, and false if it attends to all
    /// positions.
    ///
    /// # Errors
    /// Another type, or too few entries.
    pub(super) fn layers(self, types: &Value, layers: usize) -> Result<Vec<bool>, ConfigError> {
        let is_of_type = |kind: &Value| match kind.as_str()? {
            "full_attention" => Some(false),
            kind => (kind == self.name).then_some(true),
        };
        let list = types.as_array().filter(|list| list.len() >= layers);
        let found = list.and_then(|list| list.iter().take(layers).map(is_of_type).collect());
        found.ok_or_else(|| wrong("layer_types", types, self.expected))
    }
}

/// Returns a flag per layer that is true if its type has a window.
///
/// # Errors
/// An unknown type, or too few entries.
pub(super) fn windowed(types: &Value, layers: usize) -> Result<Vec<bool>, ConfigError> {
    LayerType::WINDOW.layers(types, layers)
}
