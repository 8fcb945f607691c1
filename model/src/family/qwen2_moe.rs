//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, including a shared one whose output is weighted
//! by a gate.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama, qwen2};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::FeedForward;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Qwen2MoeForCausalLM", model_type: "qwen2_moe", config }],
    expert_tensors::layouts,
    GgufFamily {
        experts: Some(GgufExperts {
            feed_forward: FeedForward::SharedExpert,
            ..GgufExperts::scored(ExpertScoring::SoftmaxTopK { renormalise: false })
        }),
        keys: &["expert_shared_count", "expert_shared_feed_forward_length", "expert_weights_norm"],
        ..GgufFamily::named(&["qwen2moe"])
    },
);

/// Parses `Qwen2MoeForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let mut model = llama::base(Family::Qwen2Moe, name, fields)?;
    qwen2::set_windows(&mut model, fields)?;
    let model = ModelConfig { qkv_bias: fields.flag("qkv_bias", true)?, ..model };
    let renormalise = fields.flag("norm_topk_prob", false)?;
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        fields.size("moe_intermediate_size")?,
        ExpertScoring::SoftmaxTopK { renormalise },
    );
    let shared = fields.size("shared_expert_intermediate_size")?;
    let is_dense = dense_layers(fields, model.num_layers)?;
    Ok(experts::with_experts(model, experts, Some((shared, FeedForward::SharedExpert)), &is_dense))
}

/// Returns a flag per layer that is true if it has no experts: the layers in `mlp_only_layers`, and
/// all but every `decoder_sparse_step`-th.
fn dense_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let step = fields.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let mut is_dense: Vec<bool> =
        (0..layers).map(|layer| !(layer + 1).is_multiple_of(step)).collect();
    let Some(listed) = fields.present("mlp_only_layers") else { return Ok(is_dense) };
    let expected = "a list of layers";
    let list = listed.as_array().ok_or_else(|| wrong("mlp_only_layers", listed, expected))?;
    for layer in list {
        let layer = layer.as_u64().and_then(|layer| usize::try_from(layer).ok());
        match layer.and_then(|layer| is_dense.get_mut(layer)) {
            Some(flag) => *flag = true,
            None => return Err(wrong("mlp_only_layers", listed, expected)),
        }
    }
    Ok(is_dense)
}
