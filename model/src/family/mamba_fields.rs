//! Fields that the configurations of models with Mamba2 have in common.

use serde_json::Value;

use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::mamba::Mamba;

/// Returns the lower and upper limit of the time step, where the upper one may be infinite, which
/// JSON has no number for: transformers writes an object, older versions a bare word.
///
/// # Errors
/// A value that is not a list of two limits.
pub(super) fn step_limits(
    fields: &ConfigFields<'_>,
    field: &'static str,
) -> Result<(f32, Option<f32>), ConfigError> {
    let Some(value) = fields.present(field) else { return Ok((0.0, None)) };
    let refused = || wrong(field, value, "a lower limit and an upper one that is not below it");
    let [lower, upper] = value.as_array().map(Vec::as_slice).unwrap_or_default() else {
        return Err(refused());
    };
    let is_infinite =
        upper.is_null() || upper.get("__float__").unwrap_or(upper).as_str() == Some("Infinity");
    let limit = |value: &Value| value.as_f64().filter(|limit| *limit >= 0.0);
    let lower = limit(lower).ok_or_else(refused)?;
    if is_infinite {
        return Ok((lower as f32, None));
    }
    let upper = limit(upper).filter(|upper| *upper >= lower).ok_or_else(refused)?;
    Ok((lower as f32, Some(upper as f32)))
}

/// Returns the sizes if heads can be divided into their groups, whose number is in `groups_field`.
///
/// # Errors
/// Groups with different numbers of heads.
pub(super) fn checked(groups_field: &'static str, mamba: Mamba) -> Result<Mamba, ConfigError> {
    if mamba.heads.is_multiple_of(mamba.groups) {
        return Ok(mamba);
    }
    let groups = Value::from(mamba.groups);
    Err(wrong(groups_field, &groups, "a divisor of the number of heads"))
}
