//! What the configurations of models with experts share.

use crate::config_fields::{ConfigError, Fields};

/// How many experts a layer has, under one of some names.
///
/// # Errors
/// None of them is there.
pub(super) fn count(fields: &Fields<'_>, names: &[&'static str]) -> Result<usize, ConfigError> {
    one_of(fields, names)
}

/// How many of them compute a row.
///
/// # Errors
/// The file does not say.
pub(super) fn per_token(fields: &Fields<'_>) -> Result<usize, ConfigError> {
    one_of(fields, &["num_experts_per_tok", "experts_per_token"])
}

/// Reads all of the names, so that an alias of one that is there counts as understood.
fn one_of(fields: &Fields<'_>, names: &[&'static str]) -> Result<usize, ConfigError> {
    let mut first = None;
    for name in names {
        let size = fields.optional_size(name)?;
        first = first.or(size);
    }
    first.ok_or(ConfigError::Missing { field: names[0] })
}
