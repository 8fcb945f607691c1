//! Qwen2 and Qwen2.5: LLaMA with biases on q, k and v, and an optional window in the upper layers.

use serde_json::Value;

use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, Fields};
use crate::family::llama;

/// `Qwen2ForCausalLM`.
pub(super) fn config(name: &str, fields: &Fields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base(Family::Qwen2, name, fields)?;
    let sliding_window = sliding_window(fields, model.num_layers)?;
    Ok(ModelConfig { qkv_bias: true, sliding_window, ..model })
}

/// The window that any layer has. It is off unless `use_sliding_window` says so, and then for the
/// layers from `max_window_layers` on, or those that `layer_types` names.
fn sliding_window(fields: &Fields<'_>, layers: usize) -> Result<Option<usize>, ConfigError> {
    if !fields.flag("use_sliding_window", false)? {
        return Ok(None);
    }
    let window = fields.optional_size("sliding_window")?;
    if let Some(types) = fields.present("layer_types").and_then(Value::as_array) {
        let any = types.iter().any(|kind| kind.as_str() == Some("sliding_attention"));
        return Ok(window.filter(|_| any));
    }
    // Zero is a value here (every layer), so this is no size.
    let first = fields.present("max_window_layers").and_then(Value::as_u64).unwrap_or(28);
    Ok(window.filter(|_| first < layers as u64))
}
