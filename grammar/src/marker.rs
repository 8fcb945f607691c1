//! What stands between what a model thinks and its answer.

use serde::{Deserialize, Serialize};

/// What a model writes between its thoughts and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Marker {
    /// Not empty.
    Text(String),
    /// At least one; they follow each other.
    Tokens(Vec<u32>),
}

impl Marker {
    /// The bytes that an answer's tokens have behind the marker; `None` where it has none. `bytes`
    /// are those of a token.
    pub fn behind(&self, tokens: &[u32], bytes: impl Fn(u32) -> Vec<u8>) -> Option<Vec<u8>> {
        let spelled = |tokens: &[u32]| tokens.iter().flat_map(|token| bytes(*token)).collect();
        match self {
            Marker::Text(text) => {
                let mut said: Vec<u8> = spelled(tokens);
                let place = said.windows(text.len()).position(|window| window == text.as_bytes());
                Some(said.split_off(place? + text.len()))
            }
            Marker::Tokens(marker) => {
                let place = tokens.windows(marker.len()).position(|window| window == marker);
                Some(spelled(&tokens[place? + marker.len()..]))
            }
        }
    }
}
