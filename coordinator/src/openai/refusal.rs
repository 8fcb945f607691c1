//! The body of an answer that is an error, as OpenAI has it.

use serde::{Deserialize, Serialize};

/// Why a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorObject {
    /// A sentence.
    pub message: String,
    /// What kind of error it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field that is wrong; null where none is.
    pub param: Option<String>,
    /// A short name.
    pub code: Option<String>,
}

/// The whole body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEnvelope {
    pub error: ErrorObject,
}

/// The field that a sentence of a rejection names first.
pub fn field_of(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("field \"").or_else(|| message.split_once("fields \""))?;
    rest.split_once('"').map(|(name, _)| name.to_owned())
}
