//! Mistral: LLaMA without biases, with a sliding window over the positions that attention covers.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::{llama, nested};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{LayerKind, Layers};

/// Window of the first Mistral, which applies if the field is missing. A `null` means no window.
const SLIDING_WINDOW_DEFAULT: usize = 4096;

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    ..FamilyDescription::new(
        &[
            Architecture { name: "MistralForCausalLM", model_type: "mistral", config },
            Architecture {
                name: "Mistral3ForConditionalGeneration",
                model_type: "mistral3",
                config: |name, fields| {
                    nested::text_config("mistral", fields, |text| config(name, text))
                },
            },
        ],
        llama::layouts,
        // Files of Mistral have the architecture of LLaMA.
        GgufFamily::NONE,
    )
};

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
