//! Qwen3.5 and Qwen3-Next: which layers keep a state, and its sizes.

use super::super::metadata::{Array, Value};
use super::keys::{ConfigError, Keys, wrong};
use crate::config::Family;
use crate::delta::DeltaNet;

/// Keys that other families must not have.
pub(super) const READ: [&str; 3] =
    ["expert_shared_count", "expert_shared_feed_forward_length", "nextn_predict_layers"];

/// One layer of so many attends, where a file does not say.
const INTERVAL: usize = 4;

/// Whether layers of the family keep states.
pub(super) fn has_states(family: Family) -> bool {
    matches!(family, Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
}

/// Layers of the model, without those behind them that guess further tokens, which nothing here
/// asks.
pub(super) fn layers(keys: &Keys<'_>, family: Family) -> Result<usize, ConfigError> {
    let blocks = keys.required_size("block_count")?;
    let guessing = match has_states(family) {
        true => keys.size_or_none("nextn_predict_layers")?.unwrap_or(0),
        false => 0,
    };
    match blocks.checked_sub(guessing) {
        Some(layers @ 1..) => Ok(layers),
        _ => Err(wrong(keys.key("nextn_predict_layers"), guessing, "fewer than block_count")),
    }
}

/// Which layers attend, of `count`: those that are not said to be recurrent, else the last of every
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
        Some(Value::Array(Array::Bools(flags))) if flags.len() >= count => {
            Ok(flags.iter().take(count).map(|recurrent| !recurrent).collect())
        }
        Some(Value::Array(array)) => Err(wrong(key, array.len(), "a flag for each layer")),
        _ => {
            let interval = keys.size("full_attention_interval")?.unwrap_or(INTERVAL);
            Ok((0..count).map(|layer| (layer + 1).is_multiple_of(interval)).collect())
        }
    }
}

/// The sizes of such layers; `None` in other families. Files of Qwen3.5 have the heads of v in
/// turn, so that blocks of quantised columns stay whole.
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
