//! Fields that the configurations of models with experts have in common.

use crate::config_fields::{ConfigError, ConfigFields};

/// Names of the number of experts. The name in a file depends on the version of transformers that
/// wrote it.
const COUNT: [&str; 2] = ["num_experts", "num_local_experts"];
const PER_TOKEN: [&str; 2] = ["num_experts_per_tok", "experts_per_token"];

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
