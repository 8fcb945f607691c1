//! The marker between a model's reasoning and its answer.

use serde::{Deserialize, Serialize};

/// Text or tokens that a model writes between its reasoning and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Marker {
    /// A non-empty text.
    Text(String),
    /// Consecutive tokens, at least one.
    Tokens(Vec<u32>),
}

impl Marker {
    /// Returns the bytes of an answer's tokens after the marker; `None` if there is no marker.
    /// `bytes` returns the bytes of a token.
    pub fn bytes_after(&self, tokens: &[u32], bytes: impl Fn(u32) -> Vec<u8>) -> Option<Vec<u8>> {
        let spelled = |tokens: &[u32]| tokens.iter().flat_map(|token| bytes(*token)).collect();
        match self {
            Marker::Text(text) => {
                let mut text_bytes: Vec<u8> = spelled(tokens);
                let place =
                    text_bytes.windows(text.len()).position(|window| window == text.as_bytes());
                Some(text_bytes.split_off(place? + text.len()))
            }
            Marker::Tokens(marker) => {
                let place = tokens.windows(marker.len()).position(|window| window == marker);
                Some(spelled(&tokens[place? + marker.len()..]))
            }
        }
    }
}
