//! GLM-4.5, 4.6 and 4.7: experts that are selected by the sigmoids of their logits and a bias, a
//! shared expert, dense first layers, and a rotation of half of each head.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};
use crate::layers::FeedForward;
use crate::ops::Op;

/// Default rope base and fraction of each head that is rotated.
const THETA: f64 = 10_000.0;
const ROTATED: f64 = 0.5;
/// Default number of layers without experts.
const DENSE: usize = 1;
const SHARED: FeedForward = FeedForward::UngatedSharedExpert;
/// Weights of experts that are divided by their sum.
const RENORMALISED: ExpertScoring = ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(1e-20) };

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Glm4MoeForCausalLM", model_type: "glm4_moe", config }],
    expert_tensors::layouts,
    GgufFamily {
        qk_norm: Some(QkNorm::PerHead),
        qk_norm_is_optional: true,
        can_rotate_part: true,
        experts: Some(GgufExperts {
            selection_bias: true,
            feed_forward: SHARED,
            ..GgufExperts::scored(RENORMALISED)
        }),
        keys: &[
            "expert_group_count",
            "expert_group_used_count",
            "expert_shared_count",
            "expert_weights_norm",
            "expert_weights_scale",
            "leading_dense_block_count",
            "nextn_predict_layers",
        ],
        stem: |op, _| (op == Op::Norm1).then_some("post_attention_norm"),
        ..GgufFamily::named(&["glm4moe"])
    },
);

/// Parses `Glm4MoeForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    // Layers for multi-token prediction, which is not supported.
    fields.present("num_mtp_layers");
    let defaults = llama::Defaults {
        rotated: ROTATED,
        can_be_partial: true,
        ..llama::Defaults::of(THETA)
    };
    let model = llama::base_with(Family::Glm4Moe, name, fields, defaults)?;
    let model = ModelConfig {
        qkv_bias: fields.flag("attention_bias", false)?,
        qk_norm: fields.flag("use_qk_norm", false)?.then_some(QkNorm::PerHead),
        ..model
    };
    let dense = experts::count_or(fields, "first_k_dense_replace", DENSE)?;
    with_sigmoid_router(model, fields, dense)
}

/// Adds the experts of DeepSeek's configurations: groups, a factor of the weights, and shared
/// experts.
///
/// # Errors
/// Missing or invalid fields.
pub(super) fn with_sigmoid_router(
    model: ModelConfig,
    fields: &ConfigFields<'_>,
    dense: usize,
) -> Result<ModelConfig, ConfigError> {
    // Files that describe the router have this one.
    fields.only("scoring_func", &Value::from("sigmoid"))?;
    fields.only("topk_method", &Value::from("noaux_tc"))?;
    let ffn_size = fields.size("moe_intermediate_size")?;
    let scoring = match fields.flag("norm_topk_prob", true)? {
        true => RENORMALISED,
        false => ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused },
    };
    let experts = Experts {
        selection: ExpertSelection {
            bias: true,
            groups: experts::groups(fields)?,
            scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        },
        ..Experts::new(experts::count(fields)?, experts::per_token(fields)?, ffn_size, scoring)
    };
    let shared = experts::shared_ffn_size(fields, "n_shared_experts", ffn_size)?;
    let is_dense = experts::dense_layers(fields, model.num_layers, dense)?;
    let shared = shared.map(|ffn_size| (ffn_size, SHARED));
    Ok(experts::with_experts(model, experts, shared, &is_dense))
}
