//! Granite: LLaMA with four multipliers, and GraniteMoe, its variant with experts.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig, Scales};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

/// Value of `position_embedding_type` for rotary positions.
pub(super) const ROPE: Option<&str> = Some("rope");

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "GraniteForCausalLM", model_type: "granite", config }],
    llama::layouts,
    GgufFamily { rotates_neighbours: true, ..GgufFamily::named(&["granite"]) },
);

pub(super) const FAMILY_WITH_EXPERTS: FamilyDescription = FamilyDescription::new(
    &[Architecture {
        name: "GraniteMoeForCausalLM",
        model_type: "granitemoe",
        config: config_with_experts,
    }],
    expert_tensors::layouts,
    GgufFamily {
        rotates_neighbours: true,
        experts: Some(GgufExperts::scored(ExpertScoring::TopKSoftmax)),
        ..GgufFamily::named(&["granitemoe"])
    },
);

/// Parses `GraniteForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let mut model = base(Family::Granite, name, fields)?;
    model.ffn_bias = fields.flag("mlp_bias", false)?;
    Ok(model)
}

/// Parses `GraniteMoeForCausalLM`.
pub(super) fn config_with_experts(
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    let model = base(Family::GraniteMoe, name, fields)?;
    // A null means a model without positions.
    if fields.has("position_embedding_type") && fields.text("position_embedding_type") != ROPE {
        return Err(ConfigError::Unsupported {
            what: "a Granite whose position_embedding_type is not \"rope\"".to_owned(),
            hint: "",
        });
    }
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        model.ffn_size,
        ExpertScoring::TopKSoftmax,
    );
    let kind = LayerKind { feed_forward: FeedForward::Experts, ..model.layers.kind(0).clone() };
    Ok(ModelConfig { layers: Layers::uniform(kind), experts: Some(experts), ..model })
}

/// Parses the fields that all variants share: those of LLaMA, biases of attention and multipliers.
pub(super) fn base(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    let bias = fields.flag("attention_bias", false)?;
    let factor =
        |field| -> Result<f32, ConfigError> { Ok(fields.positive(field)?.unwrap_or(1.0) as f32) };
    let scales = Scales {
        embedding: factor("embedding_multiplier")?,
        attention: Some(factor("attention_multiplier")?),
        residual: factor("residual_multiplier")?,
        logits: 1.0 / factor("logits_scaling")?,
    };
    Ok(ModelConfig { qkv_bias: bias, out_bias: bias, scales, ..llama::base(family, name, fields)? })
}
