//! Step 3.5: heads and limits of activations by layer.

use super::super::metadata::{MetadataArray, MetadataValue};
use super::keys::{ConfigError, Keys, wrong};
use super::states::KV_HEADS;
use crate::config::ModelConfig;
use crate::family::GgufFamily;
use crate::layers::{ActivationLimits, LayerKind, LayerSizes, Layers};

const HEADS: &str = "attention.head_count";
/// Limits in experts, and in the networks that compute every row.
const LIMITS: [&str; 2] = ["swiglu_clamp_exp", "swiglu_clamp_shexp"];

/// Returns the number of heads of q, the number of heads of k and v, and their size, in the first
/// layer without a window.
pub(super) fn heads(keys: &Keys<'_>) -> Result<(usize, usize, usize), ConfigError> {
    let windowed = keys.metadata.value(&keys.key("attention.sliding_window_pattern"));
    let first = match windowed {
        Some(MetadataValue::Array(MetadataArray::Bools(flags))) => {
            flags.iter().position(|windowed| !windowed).unwrap_or(0)
        }
        _ => 0,
    };
    let size = keys.required_size("attention.key_length")?;
    keys.same_size("attention.value_length", size, "the same as attention.key_length")?;
    if !size.is_multiple_of(2) {
        return Err(wrong(keys.key("attention.key_length"), size, "an even size"));
    }
    Ok((keys.size_of_layer(HEADS, first)?, keys.size_of_layer(KV_HEADS, first)?, size))
}

/// Returns the model with the heads and limits of each layer.
///
/// # Errors
/// Sizes that contradict each other, or more kinds of layers than there may be.
pub(super) fn sized(keys: &Keys<'_>, model: ModelConfig) -> Result<ModelConfig, ConfigError> {
    let [of_experts, of_network] = LIMITS.map(|suffix| limits(keys, suffix, model.num_layers));
    let (of_experts, of_network) = (of_experts?, of_network?);
    let sized = |layer: usize| -> Result<LayerKind, ConfigError> {
        let num_heads = keys.size_of_layer(HEADS, layer)?;
        let num_kv_heads = keys.size_of_layer(KV_HEADS, layer)?;
        if !num_heads.is_multiple_of(num_kv_heads) {
            let expected = "a divisor of attention.head_count in each layer";
            return Err(wrong(keys.key(KV_HEADS), num_kv_heads, expected));
        }
        let num_heads = Some(num_heads).filter(|heads| *heads != model.num_heads);
        let sizes = LayerSizes { num_heads, num_kv_heads, ..model.sizes() };
        Ok(LayerKind {
            sizes: Some(sizes).filter(|sizes| *sizes != model.sizes()),
            limits: ActivationLimits { experts: of_experts[layer], network: of_network[layer] },
            ..model.layers.kind(layer).clone()
        })
    };
    let kinds = (0..model.num_layers).map(sized).collect::<Result<Vec<_>, _>>()?;
    let layers = Layers::try_from_kinds(kinds).ok_or_else(|| {
        let expected = "a model with at most 256 kinds of layers";
        wrong(keys.key(LIMITS[0]), "a list", expected)
    })?;
    Ok(ModelConfig { layers, ..model }.with_kind_models())
}

/// Returns the limit of each layer, of which 0 is none.
fn limits(keys: &Keys<'_>, suffix: &str, layers: usize) -> Result<Vec<Option<f32>>, ConfigError> {
    let key = keys.key(suffix);
    let Some(limits) = keys.metadata.floats(&key)? else { return Ok(vec![None; layers]) };
    let limit = |limit: &f64| {
        let number = Some(*limit as f32).filter(|limit| limit.is_finite() && *limit >= 0.0)?;
        Some(Some(number).filter(|limit| *limit > 0.0))
    };
    let found: Option<Vec<Option<f32>>> = limits.iter().take(layers).map(limit).collect();
    let found = found.filter(|found| found.len() == layers);
    found.ok_or_else(|| wrong(key, limits.len(), "a positive number or 0 for each layer"))
}

/// Refuses limits in files of families whose activations have none.
///
/// # Errors
/// A limit other than 0.
pub(super) fn refuse_limits(keys: &Keys<'_>, gguf: &GgufFamily) -> Result<(), ConfigError> {
    for suffix in LIMITS.into_iter().filter(|_| !gguf.has_layer_heads) {
        let key = keys.key(suffix);
        let limit = match keys.metadata.value(&key) {
            Some(MetadataValue::Array(MetadataArray::Floats(limits))) => {
                limits.iter().copied().find(|limit| *limit != 0.0)
            }
            Some(_) => keys.metadata.number(&key)?.filter(|limit| *limit != 0.0),
            None => None,
        };
        if let Some(limit) = limit {
            return Err(wrong(key, limit, "a model whose activations have no limits"));
        }
    }
    Ok(())
}
