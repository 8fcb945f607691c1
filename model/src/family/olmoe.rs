//! OLMoE: experts, and a norm over all heads of q together and over all heads of k together.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "OlmoeForCausalLM", model_type: "olmoe", config }],
    expert_tensors::layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::FullWidth),
        experts: Some(GgufExperts::scored(ExpertScoring::SoftmaxTopK { renormalise: false })),
        ..GgufFamily::named(&["olmoe"])
    },
);

/// Parses `OlmoeForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base(Family::Olmoe, name, fields)?;
    if let Some(clip) = fields.positive("clip_qkv")? {
        let what = format!("an OLMoE whose q, k and v are clipped (clip_qkv {clip})");
        return Err(ConfigError::Unsupported { what, hint: "" });
    }
    let bias = fields.flag("attention_bias", false)?;
    let renormalise = fields.flag("norm_topk_prob", false)?;
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        model.ffn_size,
        ExpertScoring::SoftmaxTopK { renormalise },
    );
    let kind = LayerKind { feed_forward: FeedForward::Experts, ..model.layers.kind(0).clone() };
    Ok(ModelConfig {
        qkv_bias: bias,
        out_bias: bias,
        qk_norm: Some(QkNorm::FullWidth),
        layers: Layers::uniform(kind),
        experts: Some(experts),
        ..model
    })
}
