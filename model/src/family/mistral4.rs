//! Mistral Small 4: latent attention whose queries grow with their position, and experts that are
//! selected by a softmax of their logits, with a shared expert.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{experts, latent_attention, sigmoid_router};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExcludedExperts, ExpertGroups, ExpertScoring, ExpertSelection, Experts};
use crate::layers::FeedForward;

/// Second half of the layers with experts.
const SHARED: FeedForward = FeedForward::UngatedSharedExpert;
const EXCLUDED: ExcludedExperts = ExcludedExperts::ZeroInSelection;

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    ..FamilyDescription::new(
        // Published models have the architecture of Mistral Small 3, with another text model.
        &[Architecture { name: "Mistral4ForCausalLM", model_type: "mistral4", config }],
        latent_attention::layouts,
        GgufFamily {
            rotates_neighbours: true,
            can_rotate_part: true,
            has_latent_attention: true,
            has_temperature: true,
            experts: Some(GgufExperts {
                feed_forward: SHARED,
                excluded: EXCLUDED,
                ..GgufExperts::scored(ExpertScoring::SoftmaxTopK { renormalise: true })
            }),
            keys: sigmoid_router::GGUF_KEYS,
            ..GgufFamily::named(&["mistral4"])
        },
    )
};

/// Parses `Mistral4ForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = latent_attention::base_with_temperature(Family::Mistral4, name, fields)?;
    let ffn_size = fields.size("moe_intermediate_size")?;
    let renormalise = fields.flag("norm_topk_prob", true)?;
    let (count, per_token) = (experts::count(fields)?, experts::per_token(fields)?);
    let experts = Experts {
        selection: ExpertSelection {
            groups: experts::groups(fields)?
                .map(|groups| ExpertGroups { excluded: EXCLUDED, ..groups }),
            scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
            ..ExpertSelection::default()
        },
        ..Experts::new(count, per_token, ffn_size, ExpertScoring::SoftmaxTopK { renormalise })
    };
    let shared = experts::shared_ffn_size(fields, "n_shared_experts", ffn_size)?;
    let dense = experts::count_or(fields, "first_k_dense_replace", 0)?;
    let is_dense = experts::dense_layers(fields, model.num_layers, dense)?;
    let shared = shared.map(|ffn_size| (ffn_size, SHARED));
    Ok(experts::with_experts(model, experts, shared, &is_dense))
}
