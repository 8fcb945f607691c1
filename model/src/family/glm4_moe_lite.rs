//! GLM-4.7-Flash: DeepSeek V3's layers with a list of those that have experts.

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::latent_attention;
use super::sigmoid_router::SigmoidRouter;
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Glm4MoeLiteForCausalLM", model_type: "glm4_moe_lite", config }],
    latent_attention::layouts,
    GgufFamily::NONE,
);

/// Parses `Glm4MoeLiteForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = latent_attention::base(Family::Glm4MoeLite, name, fields)?;
    SigmoidRouter { dense_layers: 1, renormalise: true }.add_to(model, fields)
}
