//! Mistral: LLaMA without biases, with a sliding window over the positions that attention covers.

use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::family::llama;
use crate::layers::{LayerKind, Layers};

/// Window of the first Mistral, which applies if the field is missing. A `null` means no window.
const SLIDING_WINDOW_DEFAULT: usize = 4096;

/// Parses `MistralForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let sliding_window = if fields.has("sliding_window") {
        fields.optional_size("sliding_window")?
    } else {
        Some(SLIDING_WINDOW_DEFAULT)
    };
    let mut model = llama::base(Family::Mistral, name, fields)?;
    let kind = LayerKind { window: sliding_window, ..model.layers.kind(0).clone() };
    model.layers = Layers::uniform(kind);
    Ok(model)
}
