//! Qwen3: LLaMA with a norm of each head of q and k, and Qwen3-MoE, its variant with experts.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama, qwen2};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Qwen3ForCausalLM", model_type: "qwen3", config }],
    llama::layouts,
    GgufFamily { qk_norm: Some(QkNorm::PerHead), ..GgufFamily::named(&["qwen3"]) },
);

pub(super) const FAMILY_WITH_EXPERTS: FamilyDescription = FamilyDescription::new(
    &[Architecture {
        name: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        config: config_with_experts,
    }],
    expert_tensors::layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::PerHead),
        experts: Some(GgufExperts::scored(ExpertScoring::SoftmaxTopK { renormalise: true })),
        ..GgufFamily::named(&["qwen3moe"])
    },
);

/// Parses `Qwen3ForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let mut model = base(Family::Qwen3, name, fields)?;
    qwen2::set_windows(&mut model, fields)?;
    Ok(model)
}

/// Parses `Qwen3MoeForCausalLM`, whose window applies to all layers.
pub(super) fn config_with_experts(
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    let model = base(Family::Qwen3Moe, name, fields)?;
    fields.only("mlp_only_layers", &Value::Array(Vec::new()))?;
    fields.only("decoder_sparse_step", &Value::from(1))?;
    fields.present("max_window_layers");
    let window = qwen2::window(fields)?;
    let renormalise = fields.flag("norm_topk_prob", false)?;
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        fields.size("moe_intermediate_size")?,
        ExpertScoring::SoftmaxTopK { renormalise },
    );
    let kind = model.layers.kind(0).clone();
    let kind = LayerKind { window, feed_forward: FeedForward::Experts, ..kind };
    Ok(ModelConfig { layers: Layers::uniform(kind), experts: Some(experts), ..model })
}

fn base(family: Family, name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let bias = fields.flag("attention_bias", false)?;
    Ok(ModelConfig {
        qkv_bias: bias,
        out_bias: bias,
        qk_norm: Some(QkNorm::PerHead),
        ..llama::base(family, name, fields)?
    })
}
