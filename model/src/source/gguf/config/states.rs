//! Qwen3.5 and Qwen3-Next: the layers that keep a state, and its sizes.

use super::super::metadata::{MetadataArray, MetadataValue};
use super::keys::{ConfigError, Keys, wrong};
use crate::config::Family;
use crate::delta::DeltaNet;
use crate::family::GgufFamily;

/// Default interval of the layers that attend.
const INTERVAL: usize = 4;

/// Returns true if layers of the family keep states.
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

/// Returns a flag for each of `count` layers that is true if it attends: the layers that are not
/// marked as recurrent if the file contains such flags, else the last one of every
/// `full_attention_interval`.
pub(super) fn attending_layers(
    keys: &Keys<'_>,
    family: Family,
    count: usize,
) -> Result<Vec<bool>, ConfigError> {
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
    }))
}
