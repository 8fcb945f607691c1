//! Streaming of an answer: `stream` and `stream_options`.

use serde_json::Value;

use super::known_fields::only;
use super::rules::Rules;
use super::values::{Fields, flag, given, invalid};
use crate::openai::item::Rejection;

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
pub(super) fn read(fields: &Fields, rules: &Rules<'_>) -> Result<Option<StreamOptions>, Rejection> {
    let options = match given(fields, "stream_options") {
        None => StreamOptions::default(),
        Some(Value::Object(options)) => {
            let known = ["include_usage", "continuous_usage_stats", "include_obfuscation"];
            only(options, "stream_options", &known, rules.unread)?;
            if flag(options, "include_obfuscation")? {
                return Err(invalid(
                    "include_obfuscation",
                    "false; padding of events is not supported",
                ));
            }
            let include_usage = flag(options, "include_usage")?;
            let continuous_usage = flag(options, "continuous_usage_stats")? && include_usage;
            StreamOptions { include_usage, continuous_usage }
        }
        Some(_) => {
            let form = "an object with 'include_usage' or 'continuous_usage_stats'";
            return Err(invalid("stream_options", form));
        }
    };
    Ok(flag(fields, "stream")?.then_some(options))
}
