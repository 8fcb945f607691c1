//! Body of an error response, in OpenAI's format.

use serde::{Deserialize, Serialize};

/// Reason for which a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// Explanation as a sentence.
    pub message: String,
    /// Type of the error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the invalid field; null if no field is invalid.
    pub param: Option<String>,
    /// Short name of the error.
    pub code: Option<String>,
}

/// Complete body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEnvelope {
    pub error: ErrorObject,
}

/// Beginnings of messages that are followed by the name of a field and a quote.
const FIELD_FOLLOWS: [&str; 5] = [
    "Invalid value for '",
    "Missing required parameter: '",
    "Unknown parameter: '",
    "Unsupported parameter: '",
    "Unsupported value: '",
];

/// Beginning of OpenAI's message for an unknown field, followed by its name without quotes.
pub const UNRECOGNIZED: &str = "Unrecognized request argument supplied: ";

/// Returns the field that the message of a rejection names.
pub fn field_of(message: &str) -> Option<String> {
    if let Some(rest) = message.strip_prefix(UNRECOGNIZED) {
        return rest.rsplit_once(". Remove it").map(|(name, _)| name.to_owned());
    }
    let rest = FIELD_FOLLOWS.iter().find_map(|beginning| message.strip_prefix(beginning))?;
    rest.split_once('\'').map(|(name, _)| name.to_owned())
}
