//! The field `layer_types`, which defines the layers of a model that have a window.

use serde_json::Value;

use crate::config_fields::{ConfigError, wrong};

/// Returns a flag per layer that is true if its type has a window.
///
/// # Errors
/// An unknown type, or too few entries.
pub(super) fn windowed(types: &Value, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let is_windowed = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let list = types.as_array().filter(|list| list.len() >= layers);
    let windowed = list.and_then(|list| list.iter().take(layers).map(is_windowed).collect());
    let expected = "full_attention or sliding_attention for each layer";
    windowed.ok_or_else(|| wrong("layer_types", types, expected))
}
