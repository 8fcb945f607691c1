//! SmolLM3: LLaMA without rotary positions in every fourth layer.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::{layer_types, llama, qwen2};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::layers::{LayerKind, Layers};

/// Default rope base.
const THETA: f64 = 2e6;
/// Default interval of the layers without rotation.
const INTERVAL: usize = 4;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "SmolLM3ForCausalLM", model_type: "smollm3", config }],
    llama::layouts,
    GgufFamily { rotates_neighbours: true, ..GgufFamily::named(&["smollm3"]) },
);

/// Parses `SmolLM3ForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base_with(Family::SmolLm3, name, fields, llama::Defaults::of(THETA))?;
    let attention_bias = fields.flag("attention_bias", false)?;
    let rotates = rotating_layers(fields, model.num_layers)?;
    let window = qwen2::window(fields)?;
    fields.present("max_window_layers");
    let windowed = windowed_layers(fields, &rotates)?;
    let kind = model.layers.kind(0).clone();
    let layers = rotates.into_iter().zip(windowed).map(|(rotates, windowed)| LayerKind {
        rope: kind.rope.clone().filter(|_| rotates),
        window: window.filter(|_| windowed),
        ..kind.clone()
    });
    Ok(ModelConfig {
        layers: Layers::from_kinds(layers),
        qkv_bias: attention_bias,
        out_bias: attention_bias,
        ffn_bias: fields.flag("mlp_bias", false)?,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
        ..model
    })
}

fn rotating_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let interval = fields.optional_size("no_rope_layer_interval")?.unwrap_or(INTERVAL);
    // The list contains 1 for layers with rotation.
    let Some(list) = fields.present("no_rope_layers") else {
        return Ok((0..layers).map(|layer| (layer + 1) % interval != 0).collect());
    };
    let flags: Option<Vec<u64>> =
        list.as_array().and_then(|l| l.iter().map(Value::as_u64).collect());
    match flags {
        Some(flags) if flags.len() == layers => {
            Ok(flags.into_iter().map(|flag| flag != 0).collect())
        }
        _ => Err(wrong("no_rope_layers", list, "a 0 or a 1 for each layer")),
    }
}

/// Returns a flag per layer that is true if it has a window: according to `layer_types` if present,
/// else for the layers without rotation.
fn windowed_layers(fields: &ConfigFields<'_>, rotates: &[bool]) -> Result<Vec<bool>, ConfigError> {
    match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, rotates.len()),
        None => Ok(rotates.iter().map(|rotates| !rotates).collect()),
    }
}
