//! Mixtral: Mistral's attention with experts.

use super::{experts, llama};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

/// Default rope base.
const THETA: f64 = 1e6;

/// Parses `MixtralForCausalLM`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base_with(Family::Mixtral, name, fields, llama::Defaults::of(THETA))?;
    let experts = Experts {
        count: experts::count(fields)?,
        per_token: experts::per_token(fields)?,
        ffn_size: model.ffn_size,
        scoring: ExpertScoring::SoftmaxTopK { renormalise: true },
        bias: false,
    };
    let kind = LayerKind {
        window: fields.optional_size("sliding_window")?,
        feed_forward: FeedForward::Experts,
        ..model.layers.kind(0).clone()
    };
    Ok(ModelConfig { layers: Layers::uniform(kind), experts: Some(experts), ..model })
}
