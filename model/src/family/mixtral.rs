//! Mixtral: Mistral's attention with experts.

use super::{experts, llama};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, Fields};
use crate::experts::{Experts, Scoring};
use crate::layers::{FeedForward, LayerKind, Layers};

/// Default rope base.
const THETA: f64 = 1e6;

/// Parses `MixtralForCausalLM`.
pub(super) fn config(name: &str, fields: &Fields<'_>) -> Result<ModelConfig, ConfigError> {
    let model = llama::base_with(Family::Mixtral, name, fields, llama::Defaults::of(THETA))?;
    let experts = Experts {
        count: experts::count(fields)?,
        per_token: experts::per_token(fields)?,
        ffn_size: model.ffn_size,
        scoring: Scoring::SoftmaxTopK { renormalise: true },
        bias: false,
    };
    let kind = LayerKind {
        window: fields.optional_size("sliding_window")?,
        feed_forward: FeedForward::Experts,
        ..model.layers.of(0).clone()
    };
    Ok(ModelConfig { layers: Layers::alike(kind), experts: Some(experts), ..model })
}
