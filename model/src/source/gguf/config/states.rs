//! Layers that keep a state instead of a cache: those of Qwen3.5, Qwen3-Next and Kimi Linear with
//! their sizes, LFM2's, and which layers of a model with Mamba2 do.

use super::super::metadata::{MetadataArray, MetadataValue};
use super::keys::{ConfigError, Keys, MAX_SIZE, wrong};
use crate::config::Family;
use crate::delta::{DeltaNet, StateDecay};
use crate::family::{GgufFamily, description};

/// Default interval of the layers that attend.
const INTERVAL: usize = 4;

/// Returns true if layers of the family keep states of Gated DeltaNet.
pub(super) fn has_states(family: Family) -> bool {
    matches!(family, Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
}

/// Returns the number of layers, without those after them for multi-token prediction, which is not
/// supported.
pub(super) fn layers(keys: &Keys<'_>, gguf: &GgufFamily) -> Result<usize, ConfigError> {
    let blocks = keys.required_size("block_count")?;
    let suffix = "nextn_predict_layers";
    let guessing = if gguf.reads(suffix) { keys.size_or_none(suffix)?.unwrap_or(0) } else { 0 };
    match blocks.checked_sub(guessing) {
        Some(layers @ 1..) => Ok(layers),
        _ => Err(wrong(keys.key("nextn_predict_layers"), guessing, "fewer than block_count")),
    }
}

/// Number of heads of k and v, for all layers or for each.
pub(super) const KV_HEADS: &str = "attention.head_count_kv";

/// Returns true if layers of the family that have no heads of k and v do not attend.
fn omits_kv_heads(gguf: &GgufFamily) -> bool {
    gguf.has_short_convolutions || gguf.has_mamba || gguf.has_channel_decay
}

/// Returns the number of heads of k and v of the layers that attend; `None` if the file does not
/// specify it, or no layer of a model with Mamba2 attends.
///
/// # Errors
/// Layers with different numbers, except layers with none in a family that has such layers.
pub(super) fn kv_heads(keys: &Keys<'_>, gguf: &GgufFamily) -> Result<Option<usize>, ConfigError> {
    let key = keys.key(KV_HEADS);
    let is_list = matches!(keys.metadata.value(&key), Some(MetadataValue::Array(_)));
    if !omits_kv_heads(gguf) || !is_list {
        return if gguf.has_mamba { keys.size_or_none(KV_HEADS) } else { keys.size(KV_HEADS) };
    }
    let counts = keys.metadata.integers(&key)?.unwrap_or_default();
    let mut attending = counts.into_iter().filter(|count| *count != 0);
    let expected = "the same number of heads in all layers that have some";
    match attending.next() {
        None if gguf.has_mamba => Ok(None),
        Some(count @ 1..=MAX_SIZE) => match attending.find(|other| *other != count) {
            None => Ok(Some(count as usize)),
            Some(other) => Err(wrong(key, other, expected)),
        },
        other => Err(wrong(key, other.unwrap_or(0), expected)),
    }
}

/// Returns the number of rows that a short convolution covers; `None` in families without one.
///
/// # Errors
/// A missing or invalid number.
pub(super) fn convolution_taps(
    keys: &Keys<'_>,
    family: Family,
) -> Result<Option<usize>, ConfigError> {
    let has_some = description(family).gguf.has_short_convolutions;
    has_some.then(|| keys.required_size("shortconv.l_cache")).transpose()
}

/// Returns a flag for each of `count` layers that is true if it attends: in a family with short
/// convolutions, Mamba2 or states that decay by channel the layers that have heads of k and v; in
/// others the layers that are not marked as recurrent if the file contains such flags, else the
/// last one of every `full_attention_interval`.
pub(super) fn attending_layers(
    keys: &Keys<'_>,
    family: Family,
    count: usize,
) -> Result<Vec<bool>, ConfigError> {
    let gguf = &description(family).gguf;
    if omits_kv_heads(gguf) {
        let key = keys.key(KV_HEADS);
        return match keys.metadata.value(&key) {
            Some(MetadataValue::Array(array)) if array.len() < count => {
                Err(wrong(key, array.len(), "a number of heads for each layer"))
            }
            Some(MetadataValue::Array(_)) => {
                let heads = keys.metadata.integers(&key)?.unwrap_or_default();
                Ok(heads.into_iter().take(count).map(|heads| heads != 0).collect())
            }
            _ if gguf.has_mamba => Ok(vec![keys.size_or_none(KV_HEADS)?.is_some(); count]),
            _ => Ok(vec![true; count]),
        };
    }
    if !has_states(family) {
        return Ok(vec![true; count]);
    }
    let key = keys.key("attention.recurrent_layers");
    match keys.metadata.value(&key) {
        Some(MetadataValue::Array(MetadataArray::Bools(flags))) if flags.len() >= count => {
            Ok(flags.iter().take(count).map(|recurrent| !recurrent).collect())
        }
        Some(MetadataValue::Array(array)) => Err(wrong(key, array.len(), "a flag for each layer")),
        _ => {
            let interval = keys.size("full_attention_interval")?.unwrap_or(INTERVAL);
            Ok((0..count).map(|layer| (layer + 1).is_multiple_of(interval)).collect())
        }
    }
}

/// Returns the sizes of layers with a state; `None` in other families. Files of Qwen3.5 assign the
/// heads of v in turn, so that blocks of quantised columns remain whole.
pub(super) fn delta(keys: &Keys<'_>, family: Family) -> Result<Option<DeltaNet>, ConfigError> {
    if description(family).gguf.has_channel_decay {
        return channel_delta(keys).map(Some);
    }
    if !has_states(family) {
        return Ok(None);
    }
    let key_heads = keys.required_size("ssm.group_count")?;
    let value_heads = keys.required_size("ssm.time_step_rank")?;
    let values = keys.required_size("ssm.inner_size")?;
    if !value_heads.is_multiple_of(key_heads) {
        let key = keys.key("ssm.time_step_rank");
        return Err(wrong(key, value_heads, "a multiple of ssm.group_count"));
    }
    if !values.is_multiple_of(value_heads) {
        let key = keys.key("ssm.inner_size");
        return Err(wrong(key, values, "a multiple of ssm.time_step_rank"));
    }
    Ok(Some(DeltaNet {
        key_heads,
        value_heads,
        takes_turns: family != Family::Qwen3Next,
        key_dim: keys.required_size("ssm.state_size")?,
        value_dim: values / value_heads,
        taps: keys.required_size("ssm.conv_kernel")?,
        decay: StateDecay::PerHead,
    }))
}

/// Returns the sizes of layers with a state that decays by channel, which has as many heads as
/// attention.
fn channel_delta(keys: &Keys<'_>) -> Result<DeltaNet, ConfigError> {
    let heads = keys.required_size("attention.head_count")?;
    let head_dim = keys.required_size("kda.head_dim")?;
    Ok(DeltaNet::by_channel(heads, head_dim, keys.required_size("ssm.conv_kernel")?))
}
