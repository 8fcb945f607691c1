//! Options for the contents of answers, which vLLM has as well.

use super::values::{JsonFields, get_non_null, read_flag};
use crate::input_line::Rejection;

/// Options for the contents of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// A text that a stop string ends includes the stop string.
    pub includes_stop: bool,
    /// Tokens in log-probabilities are represented by their ids.
    pub spells_token_ids: bool,
    /// Answers have no reasoning.
    pub omits_reasoning: bool,
}

/// Reads `include_stop_str_in_output`, `return_tokens_as_token_ids` and `include_reasoning`.
///
/// # Errors
/// Returns a rejection if a value is not a boolean.
pub(super) fn read_output_options(fields: &JsonFields) -> Result<OutputOptions, Rejection> {
    let includes_reasoning = get_non_null(fields, "include_reasoning").is_none()
        || read_flag(fields, "include_reasoning")?;
    Ok(OutputOptions {
        includes_stop: read_flag(fields, "include_stop_str_in_output")?,
        spells_token_ids: read_flag(fields, "return_tokens_as_token_ids")?,
        omits_reasoning: !includes_reasoning,
    })
}
