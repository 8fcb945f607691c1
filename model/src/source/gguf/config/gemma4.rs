//! Gemma 4: sizes of heads and networks by layer, shared caches, and inputs of each layer.

use super::super::facts::TensorFacts;
use super::keys::{ConfigError, Keys, wrong};
use crate::config::{Features, ModelConfig, PerLayerInputs};
use crate::family::gemma4;
use crate::layers::{LayerKind, LayerSizes, Layers};

const KV_HEADS: &str = "attention.head_count_kv";
const FFN: &str = "feed_forward_length";
const SHARED: &str = "attention.shared_kv_layers";

/// Returns the size of a head in layers without a window.
pub(super) fn global_dim(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    let size = keys.required_size("attention.key_length")?;
    keys.same_size("attention.value_length", size, "the same as attention.key_length")?;
    Ok(size)
}

/// Returns the number of heads of q, and the number and size of the heads of k and v of the first
/// layer.
pub(super) fn heads(keys: &Keys<'_>) -> Result<(usize, usize, usize), ConfigError> {
    let size = keys.required_size("attention.key_length_swa")?;
    keys.same_size("attention.value_length_swa", size, "the same as attention.key_length_swa")?;
    keys.same_size("rope.dimension_count_swa", size, "the size of a head (partial rope is not)")?;
    let heads = keys.required_size("attention.head_count")?;
    Ok((heads, keys.size_of_layer(KV_HEADS, 0)?, size))
}

/// Returns the width of the network of the first layer.
pub(super) fn ffn_size(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    keys.size_of_layer(FFN, 0)
}

/// Returns the model with the sizes of each layer and everything else that is specific to the
/// family.
///
/// # Errors
/// Sizes that contradict each other.
pub(super) fn sized(
    keys: &Keys<'_>,
    model: ModelConfig,
    facts: &TensorFacts,
) -> Result<ModelConfig, ConfigError> {
    let global_dim = global_dim(keys)?;
    let sized = |layer: usize| -> Result<LayerKind, ConfigError> {
        let kind = model.layers.kind(layer);
        let num_kv_heads = keys.size_of_layer(KV_HEADS, layer)?;
        let head_dim = if kind.window.is_some() { model.head_dim } else { global_dim };
        if !model.num_heads.is_multiple_of(num_kv_heads) || !head_dim.is_multiple_of(2) {
            let expected = "a divisor of attention.head_count, with heads of even size,";
            return Err(wrong(keys.key(KV_HEADS), num_kv_heads, expected));
        }
        let sizes = LayerSizes { num_kv_heads, head_dim, ..model.sizes() };
        let sizes = Some(sizes).filter(|sizes| *sizes != model.sizes());
        Ok(LayerKind { sizes, ..kind.clone() })
    };
    let kinds = (0..model.num_layers).map(sized).collect::<Result<Vec<_>, _>>()?;
    let shared = keys.size_or_none(SHARED)?.unwrap_or(0);
    let readers_ffn = keys.size_of_layer(FFN, model.num_layers - 1)?;
    let kinds =
        gemma4::shared_caches(kinds, shared, model.sizes(), readers_ffn).ok_or_else(|| {
            let expected = "fewer layers than those that compute their own keys of the same size";
            wrong(keys.key(SHARED), shared, expected)
        })?;
    for (layer, kind) in kinds.iter().enumerate() {
        let expected = kind.sizes.unwrap_or_else(|| model.sizes());
        let found = keys.size_of_layer(FFN, layer)?;
        if found != expected.ffn_size {
            let expected = "one width, and one for the layers that share caches,";
            return Err(wrong(keys.key(FFN), found, expected));
        }
    }
    let inputs_key = "embedding_length_per_layer_input";
    let inputs = keys.size_or_none(inputs_key)?.map(|size| {
        let (layers, vocab_size) = (model.num_layers, model.vocab_size);
        PerLayerInputs { size, layers, vocab_size }
    });
    if let Some(inputs) = inputs.filter(|_| model.experts.is_some()) {
        return Err(wrong(keys.key(inputs_key), inputs.size, "0 in a model with experts"));
    }
    Ok(ModelConfig {
        layers: Layers::from_kinds(kinds),
        experts: model.experts.map(|experts| gemma4::with_router(experts, model.hidden_size)),
        scales: gemma4::scales(model.hidden_size),
        features: Features {
            logit_cap: keys.positive_or_none("final_logit_softcapping")?.map(|cap| cap as f32),
            per_layer_inputs: inputs,
            values_from_keys: facts.lacks_values,
            ..gemma4::FEATURES
        },
        ..model
    }
    .with_kind_models())
}
