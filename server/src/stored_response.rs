//! Storing of responses that are complete.

use std::io;

use openai::responses::response::{ResponseHead, ResponseObject, response_id};
use openai::responses::stored::StoredResponse;
use serde_json::Value;

use super::state::ServerState;

/// Stores a response object together with the conversation before it.
///
/// # Errors
/// The server stores no responses, the file cannot be written, or the conversation is too large.
pub fn put_response(object: Value, head: &ResponseHead, shared: &ServerState) -> io::Result<()> {
    let store = shared.responses.as_ref().ok_or(io::ErrorKind::Unsupported)?;
    let items = serde_json::from_str(&head.settings.items).unwrap_or_default();
    store.put(&response_id(&head.request), &StoredResponse::new(object, items))
}

/// Returns a response object as JSON, after storing it if that was requested. A response that
/// cannot be stored says so.
pub fn store_response(
    response: &ResponseObject<'_>,
    head: &ResponseHead,
    shared: &ServerState,
) -> Value {
    let mut object = serde_json::to_value(response).unwrap_or_default();
    if !head.settings.is_stored {
        return object;
    }
    if let Err(error) = put_response(object.clone(), head, shared) {
        object["store"] = false.into();
        let warning = format!("The response could not be stored: {error}.");
        match object["warnings"].as_array_mut() {
            Some(warnings) => warnings.push(warning.into()),
            None => object["warnings"] = vec![Value::from(warning)].into(),
        }
    }
    object
}
