//! Fields with options for the contents of answers.

use super::values::{JsonFields, get_non_null, read_flag};
use crate::input_line::Rejection;
use crate::output_options::OutputOptions;

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
