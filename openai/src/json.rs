//! Parsing of JSON objects.

use serde_json::{Map, Value};

use super::input_line::{ErrorCode, Rejection};

/// Parses a JSON object. `what` names the text and `example` is a valid object; both are for the
/// messages of rejections.
///
/// # Errors
/// Returns a rejection if the text is not JSON, nests too deeply, or is not an object.
pub fn parse_object(
    text: &str,
    what: &str,
    example: &str,
) -> Result<Map<String, Value>, Rejection> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Rejection::new(
            ErrorCode::InvalidJson,
            format!("The {what} must be a JSON object such as {example}."),
        )),
        Err(error) => Err(invalid_json(&error, what)),
    }
}

/// Returns the rejection of a text that is not JSON.
pub fn invalid_json(error: &serde_json::Error, what: &str) -> Rejection {
    let message = error.to_string();
    let reason = message.split(" at line ").next().unwrap_or(&message);
    Rejection::new(
        ErrorCode::InvalidJson,
        format!("The {what} could not be parsed as JSON: {reason} at column {}.", error.column()),
    )
}
