//! What is asked of a model.

use crate::openai::fingerprint::score_id;
use crate::openai::item::LineError;

/// A prompt, and what may follow it, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Line of the input, or of a text the number of the window, from 1.
    pub line: usize,
    /// Unique in a file.
    pub custom_id: String,
    /// At least one.
    pub prompt: Vec<u32>,
    /// At least one, each of at least one token.
    pub continuations: Vec<Vec<u32>>,
}

/// A line of the input that is not blank, or a window of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Question(Question),
    Error(LineError),
}

/// What is told of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shown {
    /// Its id.
    pub tokens: bool,
    /// So many of the most likely tokens of its place.
    pub top: u16,
}

impl Shown {
    /// Log-probabilities that an engine must tell of a token: its own, and of as many likely ones
    /// as are shown, one at least, which says whether it is the most likely one.
    pub fn logprobs(self) -> u16 {
        self.top.max(1).saturating_add(1)
    }
}

impl Item {
    /// Line of the input, from 1.
    pub fn line(&self) -> usize {
        match self {
            Item::Question(question) => question.line,
            Item::Error(error) => error.line,
        }
    }

    /// Its id.
    pub fn custom_id(&self) -> &str {
        match self {
            Item::Question(question) => &question.custom_id,
            Item::Error(error) => &error.custom_id,
        }
    }
}

impl Question {
    /// Identity of what is asked, as the model sees it, and of what is told of it.
    pub fn request_id(&self, shown: Shown) -> String {
        let bytes = |tokens: &[u32]| -> Vec<u8> {
            tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
        };
        let told = [&[u8::from(shown.tokens)][..], &shown.top.to_le_bytes()].concat();
        let head = [b"score".to_vec(), self.custom_id.clone().into_bytes(), told];
        let texts = std::iter::once(&self.prompt).chain(&self.continuations);
        let fields: Vec<Vec<u8>> = head.into_iter().chain(texts.map(|text| bytes(text))).collect();
        score_id(fields.iter().map(Vec::as_slice))
    }

    /// Tokens of the longest of its sequences.
    pub fn longest(&self) -> usize {
        let longest = self.continuations.iter().map(Vec::len).max().unwrap_or(0);
        self.prompt.len() + longest
    }
}
