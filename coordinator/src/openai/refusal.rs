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

/// Returns the first field that the message of a rejection names.
pub fn field_of(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("field \"").or_else(|| message.split_once("fields \""))?;
    rest.split_once('"').map(|(name, _)| name.to_owned())
}
