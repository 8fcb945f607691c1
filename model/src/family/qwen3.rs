//! Qwen3: LLaMA with a norm of each head of q and k, and Qwen3-MoE, its variant with experts.

use serde_json::Value;

use super::{experts, llama, qwen2};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

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
    let experts = Experts {
        count: experts::count(fields)?,
        per_token: experts::per_token(fields)?,
        ffn_size: fields.size("moe_intermediate_size")?,
        scoring: ExpertScoring::SoftmaxTopK { renormalise },
        bias: false,
    };
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
