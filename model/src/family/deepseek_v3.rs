//! DeepSeek V3, V3.1 and R1, Kimi K2 and Moonlight: latent attention, experts that are selected by
//! the sigmoids of their logits and a bias from a few groups, a shared expert and dense first
//! layers.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::latent_attention;
use super::sigmoid_router::{self, RENORMALISED, SHARED, SigmoidRouter};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "DeepseekV3ForCausalLM", model_type: "deepseek_v3", config }],
    latent_attention::layouts,
    // Files have the architecture of DeepSeek V2, and a router of sigmoids. Also those of other
    // models with the same layers, such as GLM-4.7-Flash.
    GgufFamily {
        rotates_neighbours: true,
        can_rotate_part: true,
        has_latent_attention: true,
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(RENORMALISED) }),
        keys: sigmoid_router::GGUF_KEYS,
        ..GgufFamily::NONE
    },
);

/// Parses `DeepseekV3ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("moe_layer_freq", &serde_json::Value::from(1))?;
    let model = latent_attention::base(Family::DeepseekV3, name, fields)?;
    SigmoidRouter { dense_layers: 3, renormalise: true }.add_to(model, fields)
}
