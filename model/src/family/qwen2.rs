//! Qwen2 and Qwen2.5: LLaMA with biases on q, k and v, and an optional window in the upper layers.

use serde_json::Value;

use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, Fields};
use crate::family::llama;
use crate::layers::{LayerKind, Layers};

/// `Qwen2ForCausalLM`.
pub(super) fn config(name: &str, fields: &Fields<'_>) -> Result<ModelConfig, ConfigError> {
    let mut model = llama::base(Family::Qwen2, name, fields)?;
    if let Some(window) = window(fields)? {
        let kind = model.layers.of(0).clone();
        let windowed = windowed_layers(fields, model.num_layers);
        model.layers = Layers::each(
            windowed
                .into_iter()
                .map(|windowed| LayerKind { window: windowed.then_some(window), ..kind.clone() }),
        );
    }
    Ok(ModelConfig { qkv_bias: true, ..model })
}

/// The window that layers can have; it is off unless `use_sliding_window` says so.
pub(super) fn window(fields: &Fields<'_>) -> Result<Option<usize>, ConfigError> {
    match fields.flag("use_sliding_window", false)? {
        true => fields.optional_size("sliding_window"),
        false => Ok(None),
    }
}

/// Which layers have a window: those that `layer_types` names, else those from `max_window_layers`
/// on.
pub(super) fn windowed_layers(fields: &Fields<'_>, layers: usize) -> Vec<bool> {
    if let Some(types) = fields.present("layer_types").and_then(Value::as_array) {
        let is_windowed =
            |layer: usize| types.get(layer).and_then(Value::as_str) == Some("sliding_attention");
        return (0..layers).map(is_windowed).collect();
    }
    // Zero is a value here (every layer), so this is no size.
    let first = fields.present("max_window_layers").and_then(Value::as_u64).unwrap_or(28);
    (0..layers as u64).map(|layer| layer >= first).collect()
}
