//! What the configurations of models with experts share.

use crate::config_fields::{ConfigError, Fields};

/// Names of the number of experts: which of them an architecture's files have depends on the
/// version of transformers that wrote them.
const COUNT: [&str; 2] = ["num_experts", "num_local_experts"];
const PER_TOKEN: [&str; 2] = ["num_experts_per_tok", "experts_per_token"];

/// How many experts a layer has.
///
/// # Errors
/// The file does not say, or says two numbers.
pub(super) fn count(fields: &Fields<'_>) -> Result<usize, ConfigError> {
    fields.size_of_names(&COUNT)
}

/// How many of them compute a row.
///
/// # Errors
/// The file does not say, or says two numbers.
pub(super) fn per_token(fields: &Fields<'_>) -> Result<usize, ConfigError> {
    fields.size_of_names(&PER_TOKEN)
}
