//! Mixtral: Mistral's attention with experts.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

/// Default rope base.
const THETA: f64 = 1e6;

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "MixtralForCausalLM", model_type: "mixtral", config }],
    expert_tensors::mixtral_layouts,
    // Files of Mixtral have the architecture of LLaMA, and experts.
    GgufFamily {
        rotates_neighbours: true,
        experts: Some(GgufExperts::scored(ExpertScoring::SoftmaxTopK { renormalise: true })),
        ..GgufFamily::NONE
    },
);

/// Parses `MixtralForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base_with(Family::Mixtral, name, fields, llama::Defaults::of(THETA))?;
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        model.ffn_size,
        ExpertScoring::SoftmaxTopK { renormalise: true },
    );
    let kind = LayerKind {
        window: fields.optional_size("sliding_window")?,
        feed_forward: FeedForward::Experts,
        ..model.layers.kind(0).clone()
    };
    Ok(ModelConfig { layers: Layers::uniform(kind), experts: Some(experts), ..model })
}
