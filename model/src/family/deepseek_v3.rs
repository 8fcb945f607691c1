//! DeepSeek V3, V3.1 and R1, Kimi K2, the text model of Kimi K2.5 and K2.6, and Moonlight: latent
//! attention, experts that are selected by the sigmoids of their logits and a bias from a few
//! groups, a shared expert and dense first layers.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::sigmoid_router::{self, RENORMALISED, SHARED, SigmoidRouter};
use super::{latent_attention, nested, prediction};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};

/// Default number of first layers without experts.
const DENSE_LAYERS: usize = 3;

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    ..FamilyDescription::new(
        &[
            Architecture { name: "DeepseekV3ForCausalLM", model_type: "deepseek_v3", config },
            // As published, and as transformers writes it.
            Architecture {
                name: "KimiK25ForConditionalGeneration",
                model_type: "kimi_k25",
                config: multimodal_config,
            },
            Architecture {
                name: "Kimi_K25ForConditionalGeneration",
                model_type: "kimi_k25",
                config: multimodal_config,
            },
        ],
        latent_attention::layouts,
        // Files have the architecture of DeepSeek V2, and a router of sigmoids. Also those of other
        // models with the same layers, such as GLM-4.7-Flash.
        GgufFamily {
            rotates_neighbours: true,
            can_rotate_part: true,
            has_latent_attention: true,
            experts: Some(GgufExperts {
                feed_forward: SHARED,
                ..GgufExperts::biased(RENORMALISED)
            }),
            keys: sigmoid_router::GGUF_KEYS,
            ..GgufFamily::NONE
        },
    )
};

/// Parses `DeepseekV3ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("moe_layer_freq", &serde_json::Value::from(1))?;
    let model = latent_attention::base(Family::DeepseekV3, name, fields)?;
    let router = SigmoidRouter { dense_layers: DENSE_LAYERS, renormalise: true };
    prediction::with_layer(router.add_to(model, fields)?, fields, DENSE_LAYERS)
}

/// Parses the text model of `KimiK25ForConditionalGeneration`, which Kimi K2's own code names
/// `kimi_k2`.
fn multimodal_config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let text = fields.block("text_config");
    let model_type = match text.and_then(|text| text.text("model_type")) {
        Some("kimi_k2") => "kimi_k2",
        _ => "deepseek_v3",
    };
    nested::text_config(model_type, fields, |text| config(name, text))
}
