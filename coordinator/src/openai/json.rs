//! JSON as it arrives.

use serde_json::{Map, Value};

use super::item::{ErrorCode, Rejection};

/// Reads an object; `what` it stands in and an `example` are for the sentence that refuses it.
///
/// # Errors
/// Text that is no JSON, nests too deep, or is no object.
pub fn parse_object(
    text: &str,
    what: &str,
    example: &str,
) -> Result<Map<String, Value>, Rejection> {
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Rejection::new(
            ErrorCode::InvalidJson,
            format!("The {what} is not a JSON object; write {example}."),
        )),
        Err(error) => Err(invalid_json(&error, what)),
    }
}

/// The rejection of a text that is no JSON.
pub fn invalid_json(error: &serde_json::Error, what: &str) -> Rejection {
    let message = error.to_string();
    let reason = message.split(" at line ").next().unwrap_or(&message);
    Rejection::new(
        ErrorCode::InvalidJson,
        format!("The {what} is not valid JSON (column {}: {reason}).", error.column()),
    )
}
