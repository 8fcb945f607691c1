//! Storing of responses that are complete.

use openai::responses::response::{ResponseHead, ResponseObject, response_id};
use openai::responses::stored::StoredResponse;
use serde_json::Value;

use super::state::ServerState;

/// Returns a response object as JSON, after storing it if that was requested. A response that
/// cannot be stored says so.
pub fn store_response(
    response: &ResponseObject<'_>,
    head: &ResponseHead,
    shared: &ServerState,
) -> Value {
    let mut object = serde_json::to_value(response).unwrap_or_default();
    let Some(store) = shared.responses.as_ref().filter(|_| head.settings.is_stored) else {
        return object;
    };
    let items = serde_json::from_str(&head.settings.items).unwrap_or_default();
    let stored = StoredResponse::new(object.clone(), items);
    if let Err(error) = store.put(&response_id(&head.request), &stored) {
        object["store"] = false.into();
        let warning = format!("The response could not be stored: {error}.");
        match object["warnings"].as_array_mut() {
            Some(warnings) => warnings.push(warning.into()),
            None => object["warnings"] = vec![Value::from(warning)].into(),
        }
    }
    object
}
