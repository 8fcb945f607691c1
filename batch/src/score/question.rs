//! Questions to be scored.

use openai::fingerprint::fields_id;

/// A prompt and its possible continuations, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoreQuestion {
    /// Line of the input, or number of the window of a text, from 1.
    pub line: usize,
    /// Unique within a file.
    pub custom_id: String,
    /// At least one token.
    pub prompt: Vec<u32>,
    /// At least one continuation, each of at least one token.
    pub continuations: Vec<Vec<u32>>,
}

/// Details that the output gives for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScoreDetails {
    /// Output token IDs.
    pub tokens: bool,
    /// Number of most likely tokens to output at each position.
    pub top: u16,
}

impl ScoreDetails {
    /// Returns the number of log-probabilities that the engine must return for each token: its own,
    /// and those of the `top` most likely tokens, at least one, to find out if it is the most
    /// likely one.
    pub fn logprobs(self) -> u16 {
        self.top.max(1).saturating_add(1)
    }
}

impl ScoreQuestion {
    /// Returns a hash of the question, as the model sees it, and of the details that the output
    /// gives.
    pub fn request_id(&self, details: ScoreDetails) -> String {
        let bytes = |tokens: &[u32]| -> Vec<u8> {
            tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
        };
        let details_bytes = [&[u8::from(details.tokens)][..], &details.top.to_le_bytes()].concat();
        let head = [b"score".to_vec(), self.custom_id.clone().into_bytes(), details_bytes];
        let texts = std::iter::once(&self.prompt).chain(&self.continuations);
        let fields: Vec<Vec<u8>> = head.into_iter().chain(texts.map(|text| bytes(text))).collect();
        fields_id(fields.iter().map(Vec::as_slice))
    }

    /// Returns the length of its longest sequence, in tokens.
    pub fn max_sequence_len(&self) -> usize {
        let longest = self.continuations.iter().map(Vec::len).max().unwrap_or(0);
        self.prompt.len() + longest
    }
}
