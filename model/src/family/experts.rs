//! Fields that the configurations of models with experts have in common.

use serde_json::Value;

use crate::config::ModelConfig;
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{DenseLayers, ExpertGroups, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};

/// Names of the number of experts. The name in a file depends on the version of transformers that
/// wrote it.
const COUNT: [&str; 4] =
    ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
const PER_TOKEN: [&str; 5] =
    ["num_experts_per_tok", "experts_per_token", "moe_k", "moe_top_k", "num_experts_per_token"];
/// Names of the number of groups of experts.
const GROUPS: [&str; 2] = ["n_group", "num_expert_group"];

/// Returns the number of experts in a layer.
///
/// # Errors
/// A missing field, or two fields that differ.
pub(super) fn count(fields: &ConfigFields<'_>) -> Result<usize, ConfigError> {
    fields.size_of_names(&COUNT)
}

/// Returns the number of experts that compute a row.
///
/// # Errors
/// A missing field, or two fields that differ.
pub(super) fn per_token(fields: &ConfigFields<'_>) -> Result<usize, ConfigError> {
    fields.size_of_names(&PER_TOKEN)
}

/// Returns the width of the shared experts, which are one network; `None` if `count_field` is
/// absent or 0.
///
/// # Errors
/// An invalid number.
pub(super) fn shared_ffn_size(
    fields: &ConfigFields<'_>,
    count_field: &'static str,
    ffn_size: usize,
) -> Result<Option<usize>, ConfigError> {
    let value = fields.present(count_field);
    if value.is_some_and(|value| value.as_u64() == Some(0)) {
        return Ok(None);
    }
    Ok(fields.optional_size(count_field)?.map(|count| count * ffn_size))
}

/// Returns the groups of experts; `None` if there is one group only.
///
/// # Errors
/// Groups without the number of those that a row selects from.
pub(super) fn groups(fields: &ConfigFields<'_>) -> Result<Option<ExpertGroups>, ConfigError> {
    let count = fields.optional_size_of_names(&GROUPS)?.unwrap_or(1);
    let per_token = fields.optional_size("topk_group")?;
    if count == 1 {
        return Ok(None);
    }
    let per_token = per_token.ok_or(ConfigError::Missing { field: "topk_group" })?;
    Ok(Some(ExpertGroups::new(count, per_token)))
}

/// Returns a whole number that may be 0, or `default` if the field is absent.
///
/// # Errors
/// Any other value.
pub(super) fn count_or(
    fields: &ConfigFields<'_>,
    field: &'static str,
    default: usize,
) -> Result<usize, ConfigError> {
    match fields.present(field) {
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        Some(_) => fields.size(field),
        None => Ok(default),
    }
}

/// Returns a model with experts in the layers for which `is_dense` is false.
///
/// `model` is a dense model, whose `ffn_size` is the width of its dense layers; `shared` is the
/// width and kind of a shared expert.
pub(super) fn with_experts(
    model: ModelConfig,
    experts: Experts,
    shared: Option<(usize, FeedForward)>,
    is_dense: &[bool],
) -> ModelConfig {
    let others = shared.map_or(FeedForward::Experts, |(_, kind)| kind);
    let dense = is_dense.contains(&true);
    let dense = dense.then_some(DenseLayers { ffn_size: model.ffn_size, others });
    let layers = is_dense.iter().enumerate().map(|(layer, is_dense)| {
        let feed_forward = if *is_dense { FeedForward::Dense } else { others };
        LayerKind { feed_forward, ..model.layers.kind(layer).clone() }
    });
    ModelConfig {
        ffn_size: shared.map_or(model.ffn_size, |(ffn_size, _)| ffn_size),
        layers: Layers::from_kinds(layers),
        experts: Some(Experts { dense, ..experts }),
        ..model
    }
}

/// Returns a flag per layer that is true if it has no experts: according to `mlp_layer_types` if
/// present, else for the first `dense` layers.
///
/// # Errors
/// An unknown type, or too few entries.
pub(super) fn dense_layers(
    fields: &ConfigFields<'_>,
    layers: usize,
    dense: usize,
) -> Result<Vec<bool>, ConfigError> {
    const FIELD: &str = "mlp_layer_types";
    let Some(types) = fields.present(FIELD) else {
        return Ok((0..layers).map(|layer| layer < dense).collect());
    };
    let is_dense = |kind: &Value| match kind.as_str() {
        Some("dense") => Some(true),
        Some("sparse") => Some(false),
        _ => None,
    };
    let list = types.as_array().filter(|list| list.len() >= layers);
    let dense = list.and_then(|list| list.iter().take(layers).map(is_dense).collect());
    dense.ok_or_else(|| wrong(FIELD, types, "dense or sparse for each layer"))
}
