//! Division of a text into windows, as the transformers documentation evaluates the perplexity of
//! models with a fixed context: a window begins every `stride` tokens, and each scores the tokens
//! that no earlier window scored. Every token but the first is scored once; if windows do not
//! overlap, the first token of each window is not scored.

use super::question::ScoreQuestion;

/// Sizes of windows, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSizes {
    /// Length of a window, at least 2.
    pub context: usize,
    /// Distance between the beginnings of windows, from 1 to `context`.
    pub stride: usize,
}

impl WindowSizes {
    /// Returns the windows of a text, whose first token is not scored. A text of fewer than two
    /// tokens has none.
    pub fn split(self, tokens: &[u32]) -> Vec<ScoreQuestion> {
        let mut questions = Vec::new();
        let (mut scored, mut begin) = (0, 0);
        while scored < tokens.len() {
            let end = tokens.len().min(begin + self.context);
            // The first scored token needs a predecessor.
            let first = scored.max(begin + 1);
            if first < end {
                questions.push(ScoreQuestion {
                    line: questions.len() + 1,
                    custom_id: format!("tokens-{first}-{end}"),
                    prompt: tokens[begin..first].to_vec(),
                    continuations: vec![tokens[first..end].to_vec()],
                });
            }
            (scored, begin) = (end, begin + self.stride);
        }
        questions
    }

    /// Returns the weight of a window with this number of scored tokens in the documentation's
    /// loop: the number of labels that are not masked, less one. If nothing precedes a window, its
    /// first token is among these labels.
    pub(super) fn weight(self, index: usize, tokens: u64) -> f64 {
        let begins_anew = index == 0 || self.stride >= self.context;
        (tokens - u64::from(!begins_anew)) as f64
    }
}
