//! Conversations that a request to `/v1/responses` continues.

use openai::body::JsonFields;
use openai::input_line::{ErrorCode, Rejection};
use openai::responses::input::referenced_id;
use openai::responses::request::{ConversationContext, into_chat_fields};
use openai::responses::settings::ResponseSettings;
use serde_json::Value;

use super::background_task::is_queued;
use super::error::ApiError;
use super::state::ServerState;

/// Converts the fields of a body to those of a chat completion, after reading the stored items that
/// the body refers to.
///
/// # Errors
/// A field is invalid, or a response or an item is not stored.
pub fn convert_fields(
    mut fields: JsonFields,
    shared: &ServerState,
) -> Result<(JsonFields, ResponseSettings), ApiError> {
    let previous = match fields.get("previous_response_id") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(id)) => read_previous(id, shared)?,
        Some(_) => {
            let message = "Invalid value for 'previous_response_id': must be a string.";
            let rejection = Rejection::new(ErrorCode::InvalidValue, message);
            return Err(rejection.with_param("previous_response_id").into());
        }
    };
    if let Some(Value::Array(items)) = fields.get_mut("input") {
        resolve_references(items, shared)?;
    }
    let context = ConversationContext { previous, can_store: shared.responses.is_some() };
    Ok(into_chat_fields(fields, context, &shared.unread)?)
}

fn read_previous(id: &str, shared: &ServerState) -> Result<Vec<Value>, ApiError> {
    let stored = shared.responses.as_ref();
    let stored = stored.and_then(|store| store.get(id, shared.max_json_values()));
    match stored {
        Some(stored) if is_queued(&stored.response) => {
            let shown: String = id.chars().take(100).collect();
            let message = format!("Previous response with id '{shown}' is not complete.");
            Err(ApiError::invalid("previous_response_not_found", message)
                .with_param("previous_response_id"))
        }
        Some(stored) => Ok(stored.into_items()),
        None => {
            let shown: String = id.chars().take(100).collect();
            let message =
                format!("Previous response with id '{shown}' not found.{}", shared.store_hint());
            Err(ApiError::invalid("previous_response_not_found", message)
                .with_param("previous_response_id"))
        }
    }
}

/// Maximum number of references in an input: each is read from a file.
const MAX_REFERENCES: usize = 1000;

/// Replaces references to stored items by these.
fn resolve_references(items: &mut [Value], shared: &ServerState) -> Result<(), ApiError> {
    let mut references = 0;
    for item in items {
        let Some(id) = referenced_id(item) else { continue };
        references += 1;
        let stored = shared.responses.as_ref().filter(|_| references <= MAX_REFERENCES);
        let found = stored.and_then(|store| store.get_item(id, shared.max_json_values()));
        *item = found.ok_or_else(|| {
            let shown: String = id.chars().take(100).collect();
            let message = format!("Item with id '{shown}' not found.{}", shared.store_hint());
            ApiError::invalid("item_not_found", message).with_param("input")
        })?;
    }
    Ok(())
}
