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
