//! Qwen2 and Qwen2.5: LLaMA with biases on q, k and v, and an optional window in the upper layers.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::{layer_types, llama};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{LayerKind, Layers};

/// Default window if the field is missing. A `null` means no window.
const SLIDING_WINDOW_DEFAULT: usize = 4096;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Qwen2ForCausalLM", model_type: "qwen2", config }],
    llama::layouts,
    GgufFamily::named(&["qwen2"]),
);

/// Parses `Qwen2ForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let mut model = llama::base(Family::Qwen2, name, fields)?;
    set_windows(&mut model, fields)?;
    Ok(ModelConfig { qkv_bias: true, ..model })
}

/// Sets the windows of Qwen's layers.
pub(super) fn set_windows(
    model: &mut ModelConfig,
    fields: &ConfigFields<'_>,
) -> Result<(), ConfigError> {
    let window = window(fields)?;
    let windowed = windowed_layers(fields, model.num_layers)?;
    let kind = model.layers.kind(0).clone();
    model.layers = Layers::from_kinds(
        windowed
            .into_iter()
            .map(|windowed| LayerKind { window: window.filter(|_| windowed), ..kind.clone() }),
    );
    Ok(())
}

/// Returns the window that layers can have; `None` unless `use_sliding_window` is true.
pub(super) fn window(fields: &ConfigFields<'_>) -> Result<Option<usize>, ConfigError> {
    // transformers writes 0 for no window of Qwen2-MoE.
    let is_zero = fields.present("sliding_window").and_then(Value::as_u64) == Some(0);
    let window = match fields.has("sliding_window") {
        true if is_zero => None,
        true => fields.optional_size("sliding_window")?,
        false => Some(SLIDING_WINDOW_DEFAULT),
    };
    let used = fields.flag("use_sliding_window", false)?;
    Ok(window.filter(|_| used))
}

/// Returns a flag per layer that is true if it has a window: according to `layer_types` if present,
/// else for all layers from `max_window_layers`.
fn windowed_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    // Zero is valid (all layers have a window), so this field is not read as a size.
    let first = fields.present("max_window_layers").and_then(Value::as_u64).unwrap_or(28);
    match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, layers),
        None => Ok((0..layers as u64).map(|layer| layer >= first).collect()),
    }
}
