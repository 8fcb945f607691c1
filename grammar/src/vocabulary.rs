//! The bytes of tokens.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use serde::{Deserialize, Serialize};

/// The tokens of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Bytes that each token adds to a text; empty for special tokens and for tokens without text,
    /// which no grammar allows.
    pub words: Vec<Vec<u8>>,
    /// Tokens that end an answer, at least one.
    pub ends: Vec<u32>,
}

impl Vocabulary {
    /// Returns the number of words of a mask: a bit for each token.
    pub fn mask_words(&self) -> usize {
        self.words.len().div_ceil(32)
    }

    /// Returns the bytes that a token adds to a text.
    pub(crate) fn word(&self, token: u32) -> Option<&[u8]> {
        self.words.get(token as usize).map(Vec::as_slice)
    }

    /// Converts the vocabulary to the parser's representation.
    pub(crate) fn to_env(&self) -> TokEnv {
        let end = self.ends.first().copied().unwrap_or(0);
        let info = TokRxInfo::new(self.words.len() as u32, end);
        Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &self.words)))
    }
}
