//! The predicted answer of a request, whose tokens are drafts. Token ids are an extension.

use serde_json::Value;

use super::known_fields::reject_unknown;
use super::prompts::{RawPrompt, read_tokens};
use super::rules::BodyRules;
use super::values::{JsonFields, get_non_null, invalid_value};
use crate::input_line::{ErrorCode, Rejection};

const FIELD: &str = "prediction";
const FORMAT: &str = "an object {\"type\": \"content\", \"content\": ...} whose content is a \
                      string, an array of parts {\"type\": \"text\", \"text\": ...} or an array of \
                      token ids";

/// Reads OpenAI's `prediction`; returns `None` if it is not given or empty.
///
/// # Errors
/// Returns a rejection of a prediction that is not a text.
pub(super) fn read_prediction(
    fields: &JsonFields,
    rules: &BodyRules<'_>,
) -> Result<Option<RawPrompt>, Rejection> {
    let Some(value) = get_non_null(fields, FIELD) else { return Ok(None) };
    let refused = || invalid_value(FIELD, FORMAT);
    let prediction = value.as_object().ok_or_else(refused)?;
    match prediction.get("type").and_then(Value::as_str) {
        Some("content") => {}
        Some(other) => return Err(unsupported("prediction", other, "content")),
        None => return Err(refused()),
    }
    reject_unknown(prediction, FIELD, &["type", "content"], rules.unknown_fields)?;
    let text = match prediction.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(ids)) if ids.first().is_some_and(Value::is_number) => {
            let tokens = read_tokens(ids, FIELD, FORMAT)?;
            return Ok(Some(RawPrompt::Tokens(tokens)));
        }
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| match part.get("type").and_then(Value::as_str) {
                Some("text") => part["text"].as_str().ok_or_else(refused),
                Some(other) => Err(unsupported("part of a prediction", other, "text")),
                None => Err(refused()),
            })
            .collect::<Result<String, _>>()?,
        _ => return Err(refused()),
    };
    Ok((!text.is_empty()).then_some(RawPrompt::Text(text)))
}

/// Returns the rejection of something of a type other than the only one that is supported.
fn unsupported(what: &str, found: &str, supported: &str) -> Rejection {
    let shown: String = found.chars().take(80).collect();
    let message = format!("Unsupported {what} of type '{shown}': only '{supported}' is supported.");
    Rejection::new(ErrorCode::UnsupportedField, message).with_param(FIELD)
}
