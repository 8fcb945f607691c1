//! Settings of a request that determine the format of its response.

use serde_json::{Map, Value};

/// Settings of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponseSettings {
    /// Fields of the request that its response repeats, with their defaults.
    pub echo: Map<String, Value>,
    /// The response is stored.
    pub is_stored: bool,
    /// The response is computed after the request is answered; it is stored.
    pub is_background: bool,
    /// Items of the conversation before the response, as JSON; empty unless it is stored.
    pub items: String,
    /// Reasoning items have a copy of the reasoning that clients send back without looking at it.
    pub returns_encrypted_reasoning: bool,
    /// The earliest turns are removed from a conversation that exceeds the context.
    pub truncates: bool,
}
