//! DeepSeek V2 and V2 Lite: latent attention, and experts that are selected by a softmax of their
//! logits, in V2 from the groups with the largest single scores.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{experts, latent_attention, sigmoid_router};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{
    ExcludedExperts, ExpertGroups, ExpertScoring, ExpertSelection, Experts, GroupScore,
};
use crate::layers::FeedForward;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "DeepseekV2ForCausalLM", model_type: "deepseek_v2", config }],
    latent_attention::layouts,
    // Also those of Mistral Large 3, whose queries have a factor of their position.
    GgufFamily {
        rotates_neighbours: true,
        can_rotate_part: true,
        has_latent_attention: true,
        has_temperature: true,
        experts: Some(GgufExperts {
            is_f32: true,
            group_score: GroupScore::Largest,
            excluded: ExcludedExperts::ZeroScore,
            feed_forward: FeedForward::UngatedSharedExpert,
            ..GgufExperts::scored(SCORING)
        }),
        keys: sigmoid_router::GGUF_KEYS,
        ..GgufFamily::named(&["deepseek2"])
    },
);

/// The reference never divides the weights by their sum.
const SCORING: ExpertScoring = ExpertScoring::SoftmaxTopK { renormalise: false };

/// Parses `DeepseekV2ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("moe_layer_freq", &Value::from(1))?;
    fields.only("mlp_bias", &Value::Bool(false))?;
    fields.only("scoring_func", &Value::from("softmax"))?;
    fields.only("norm_topk_prob", &Value::Bool(false))?;
    let model = latent_attention::base(Family::DeepseekV2, name, fields)?;
    let ffn_size = fields.size("moe_intermediate_size")?;
    let (count, per_token) = (experts::count(fields)?, experts::per_token(fields)?);
    let experts = Experts {
        selection: ExpertSelection {
            groups: groups(fields)?,
            scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
            is_f32: true,
            ..ExpertSelection::default()
        },
        ..Experts::new(count, per_token, ffn_size, SCORING)
    };
    let shared = experts::shared_ffn_size(fields, "n_shared_experts", ffn_size)?;
    let dense = experts::count_or(fields, "first_k_dense_replace", 0)?;
    let is_dense = experts::dense_layers(fields, model.num_layers, dense)?;
    let shared = shared.map(|ffn_size| (ffn_size, FeedForward::UngatedSharedExpert));
    Ok(experts::with_experts(model, experts, shared, &is_dense))
}

/// Returns the groups that a row's experts are selected from, if the file's method has some.
fn groups(fields: &ConfigFields<'_>) -> Result<Option<ExpertGroups>, ConfigError> {
    let method = fields.present("topk_method");
    let groups = experts::groups(fields)?;
    match method.map_or(Some("greedy"), Value::as_str) {
        Some("greedy") => Ok(None),
        Some("group_limited_greedy") => Ok(groups.map(|groups| ExpertGroups {
            score: GroupScore::Largest,
            excluded: ExcludedExperts::ZeroScore,
            ..groups
        })),
        _ => {
            let method = method.unwrap_or(&Value::Null);
            Err(wrong("topk_method", method, "greedy or group_limited_greedy"))
        }
    }
}
