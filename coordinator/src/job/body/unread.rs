//! Fields of OpenAI's request bodies that are accepted without effect, and those that are not
//! implemented but harmless while they keep their default.

use serde_json::Value;

use crate::job::item::{ErrorCode, Rejection};

/// Fields that change nothing in an answer here: who asks, and how a hosted service would file it.
const IGNORED: [&str; 7] =
    ["model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"];

/// Fields that the job reads itself.
pub const IMPLEMENTED: [&str; 16] = [
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "logprobs",
    "top_logprobs",
    "seed",
    "stop",
    "ignore_eos",
    "response_format",
    "structured_outputs",
];

/// Whether `value` is what OpenAI documents as the default of an unimplemented `field`; `None` for a
/// field we have never heard of. `null` means "not given" everywhere.
fn is_default(field: &str, value: &Value) -> Option<bool> {
    let empty_list = || value.as_array().is_some_and(Vec::is_empty);
    let empty_object = || value.as_object().is_some_and(serde_json::Map::is_empty);
    Some(match field {
        "best_of" => value.as_f64() == Some(1.0),
        "echo" | "stream" => value == &Value::Bool(false),
        "presence_penalty" | "frequency_penalty" => value.as_f64() == Some(0.0),
        "logit_bias" => empty_object(),
        "tools" | "functions" => empty_list(),
        // With no tools both mean that no tool is called.
        "tool_choice" | "function_call" => value == "none" || value == "auto",
        "parallel_tool_calls" => value == &Value::Bool(true),
        "suffix" => value == "",
        "modalities" => value == &serde_json::json!(["text"]),
        "stream_options" | "audio" | "prediction" | "reasoning_effort" | "verbosity"
        | "web_search_options" => false,
        _ => return None,
    })
}

/// Checks a field that the job does not read.
///
/// # Errors
/// A rejection that names the field.
pub fn check_unread(field: &str, value: &Value) -> Result<(), Rejection> {
    if value.is_null() || IGNORED.contains(&field) || is_default(field, value) == Some(true) {
        return Ok(());
    }
    let reason = match is_default(field, value) {
        Some(_) => format!("The field \"{field}\" is only implemented with its default value"),
        None => format!("The field \"{field}\" is not known here"),
    };
    Err(Rejection::new(ErrorCode::UnsupportedField, format!("{reason}; leave it out.")))
}
