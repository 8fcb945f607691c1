//! Sizes of layers with Mamba2.

use super::super::facts::TensorFacts;
use super::keys::{ConfigError, Keys, wrong};
use super::states::attending_layers;
use crate::config::Family;
use crate::family::{description, nemotron_h};
use crate::mamba::Mamba;

/// Returns the sizes in a model of `count` layers; `None` in families without Mamba2, and for
/// models whose layers all attend. Files do not contain limits of time steps.
///
/// # Errors
/// Missing or inconsistent sizes.
pub(super) fn mamba(
    keys: &Keys<'_>,
    family: Family,
    count: usize,
    facts: &TensorFacts,
) -> Result<Option<Mamba>, ConfigError> {
    let has_mamba = description(family).gguf.has_mamba;
    if !has_mamba || attending_layers(keys, family, count)?.iter().all(|attends| *attends) {
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
        min_step: if family == Family::NemotronH { nemotron_h::MIN_STEP as f32 } else { 0.0 },
        max_step: None,
    }))
}
