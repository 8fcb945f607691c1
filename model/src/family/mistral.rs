//! Mistral: LLaMA without biases, with a sliding window over the positions that attention covers;
//! and Ministral 3, whose queries grow with their position.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::{llama, mistral4, nested};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{LayerKind, Layers};

/// Window of the first Mistral, which applies if the field is missing. A `null` means no window.
const SLIDING_WINDOW_DEFAULT: usize = 4096;
/// Default rope base of Ministral 3.
const MINISTRAL_THETA: f64 = 1e6;

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    ..FamilyDescription::new(
        &[
            Architecture { name: "MistralForCausalLM", model_type: "mistral", config },
            Architecture {
                name: "Mistral3ForConditionalGeneration",
                model_type: "mistral3",
                config: multimodal_config,
            },
            Architecture {
                name: "Ministral3ForCausalLM",
                model_type: "ministral3",
                config: ministral_config,
            },
        ],
        llama::layouts,
        // Files of Mistral have the architecture of LLaMA, but those of Ministral.
        GgufFamily {
            rotates_neighbours: true,
            has_temperature: true,
            ..GgufFamily::named(&["mistral3"])
        },
    )
};

/// Parses `MistralForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let sliding_window = if fields.has("sliding_window") {
        fields.optional_size("sliding_window")?
    } else {
        Some(SLIDING_WINDOW_DEFAULT)
    };
    Ok(windowed(llama::base(Family::Mistral, name, fields)?, sliding_window))
}

/// Parses `Ministral3ForCausalLM`.
fn ministral_config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let defaults =
        llama::Defaults { has_temperature: true, ..llama::Defaults::of(MINISTRAL_THETA) };
    let model = llama::base_with(Family::Mistral, name, fields, defaults)?;
    Ok(windowed(model, fields.optional_size("sliding_window")?))
}

/// Parses `Mistral3ForConditionalGeneration`, of which the text model may be of another family.
fn multimodal_config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let text = fields.block("text_config");
    match text.and_then(|text| text.text("model_type")) {
        Some("mistral4") => {
            nested::text_config("mistral4", fields, |text| mistral4::config(name, text))
        }
        Some("ministral3") => {
            nested::text_config("ministral3", fields, |text| ministral_config(name, text))
        }
        _ => nested::text_config("mistral", fields, |text| config(name, text)),
    }
}

fn windowed(model: ModelConfig, window: Option<usize>) -> ModelConfig {
    let kind = LayerKind { window, ..model.layers.kind(0).clone() };
    ModelConfig { layers: Layers::uniform(kind), ..model }
}
