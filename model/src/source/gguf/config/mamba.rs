//! Layers with Mamba2 and their sizes.

use super::super::facts::TensorFacts;
use super::super::metadata::{MetadataArray, MetadataValue};
use super::keys::{ConfigError, Keys, wrong};
use crate::family::GgufFamily;
use crate::mamba::Mamba;

/// Number of KV heads, which is 0 for layers that do not attend.
const KV_HEADS: &str = "attention.head_count_kv";

/// Returns the number of KV heads of each layer; `None` without such a list.
///
/// # Errors
/// A list of other values than numbers.
fn listed_kv_heads(keys: &Keys<'_>) -> Result<Option<Vec<u64>>, ConfigError> {
    let key = keys.key(KV_HEADS);
    let Some(MetadataValue::Array(array)) = keys.metadata.value(&key) else { return Ok(None) };
    let numbers = match array {
        MetadataArray::Unsigned(numbers) => Some(numbers.clone()),
        MetadataArray::Signed(numbers) => {
            numbers.iter().map(|number| u64::try_from(*number).ok()).collect()
        }
        _ => None,
    };
    numbers.map(Some).ok_or_else(|| wrong(key, array.len(), "a number for each layer"))
}

/// Returns the number of KV heads of the layers that attend; `None` if there are none.
///
/// # Errors
/// Layers with different numbers.
pub(super) fn kv_heads(keys: &Keys<'_>) -> Result<Option<usize>, ConfigError> {
    let Some(listed) = listed_kv_heads(keys)? else { return keys.size_or_none(KV_HEADS) };
    let mut attending = listed.into_iter().filter(|heads| *heads > 0);
    let Some(first) = attending.next() else { return Ok(None) };
    let expected = "the same number for all layers that attend";
    let differs = attending.find(|heads| *heads != first);
    match (differs, u32::try_from(first)) {
        (None, Ok(heads)) => Ok(Some(heads as usize)),
        (Some(other), _) => Err(wrong(keys.key(KV_HEADS), other, expected)),
        (None, Err(_)) => Err(wrong(keys.key(KV_HEADS), first, "a number of heads")),
    }
}

/// Returns a flag for each of `count` layers that is true if it attends.
///
/// # Errors
/// A list that is too short.
pub(super) fn attending_layers(keys: &Keys<'_>, count: usize) -> Result<Vec<bool>, ConfigError> {
    match listed_kv_heads(keys)? {
        Some(heads) if heads.len() >= count => {
            Ok(heads.into_iter().take(count).map(|heads| heads > 0).collect())
        }
        Some(heads) => Err(wrong(keys.key(KV_HEADS), heads.len(), "a number for each layer")),
        None => Ok(vec![keys.size_or_none(KV_HEADS)?.is_some(); count]),
    }
}

/// Returns the sizes; `None` in families without Mamba2, and for models whose layers all attend.
/// Files do not limit time steps.
///
/// # Errors
/// Missing or inconsistent sizes.
pub(super) fn mamba(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    facts: &TensorFacts,
) -> Result<Option<Mamba>, ConfigError> {
    if !gguf.has_mamba {
        return Ok(None);
    }
    let listed = listed_kv_heads(keys)?;
    if listed.is_none_or(|heads| heads.iter().all(|heads| *heads > 0)) {
        return Ok(None);
    }
    let heads = keys.required_size("ssm.time_step_rank")?;
    let inner = keys.required_size("ssm.inner_size")?;
    if !inner.is_multiple_of(heads) {
        return Err(wrong(keys.key("ssm.inner_size"), inner, "a multiple of ssm.time_step_rank"));
    }
    let groups = keys.required_size("ssm.group_count")?;
    if !heads.is_multiple_of(groups) {
        return Err(wrong(keys.key("ssm.group_count"), groups, "a divisor of ssm.time_step_rank"));
    }
    Ok(Some(Mamba {
        heads,
        head_dim: inner / heads,
        groups,
        state_dim: keys.required_size("ssm.state_size")?,
        taps: keys.required_size("ssm.conv_kernel")?,
        conv_bias: facts.has_conv_bias,
        min_step: 0.0,
        max_step: None,
    }))
}
