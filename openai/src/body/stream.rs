//! Streaming of an answer: `stream` and `stream_options`.

use serde_json::Value;

use super::known_fields::reject_unknown;
use super::rules::BodyRules;
use super::values::{JsonFields, get_non_null, invalid_value, read_flag};
use crate::input_line::Rejection;

/// Contents of a stream in addition to the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Token counts in a separate last event.
    pub include_usage: bool,
    /// Token counts so far in every event (a vLLM extension); only with `include_usage`.
    pub continuous_usage: bool,
}

/// Reads `stream` and `stream_options`; returns `None` if the answer is not streamed.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_stream_options(
    fields: &JsonFields,
    rules: &BodyRules<'_>,
) -> Result<Option<StreamOptions>, Rejection> {
    let options = match get_non_null(fields, "stream_options") {
        None => StreamOptions::default(),
        Some(Value::Object(options)) => {
            let known = ["include_usage", "continuous_usage_stats", "include_obfuscation"];
            reject_unknown(options, "stream_options", &known, rules.unknown_fields)?;
            if read_flag(options, "include_obfuscation")? {
                return Err(invalid_value(
                    "include_obfuscation",
                    "false; padding of events is not supported",
                ));
            }
            let include_usage = read_flag(options, "include_usage")?;
            let continuous_usage = read_flag(options, "continuous_usage_stats")? && include_usage;
            StreamOptions { include_usage, continuous_usage }
        }
        Some(_) => {
            let expected = "an object with 'include_usage' or 'continuous_usage_stats'";
            return Err(invalid_value("stream_options", expected));
        }
    };
    Ok(read_flag(fields, "stream")?.then_some(options))
}
