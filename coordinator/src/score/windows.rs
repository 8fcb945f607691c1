//! A text as windows, as transformers' documentation evaluates the perplexity of models with a
//! fixed context: a window begins every so many tokens, and of each those tokens are scored that no
//! window before it had. Every token but the first is scored once; where windows do not overlap, no
//! window's first one is.

use super::item::Question;

/// How a text is cut, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Of a window, at least 2.
    pub context: usize,
    /// From one to the next, 1 to `context`.
    pub stride: usize,
}

impl Windows {
    /// The windows of a text, whose first token nothing is said of. None of a text without a second
    /// one.
    pub fn of(self, tokens: &[u32]) -> Vec<Question> {
        let mut questions = Vec::new();
        let (mut scored, mut begin) = (0, 0);
        while scored < tokens.len() {
            let end = tokens.len().min(begin + self.context);
            // Something must stand before the first one that is scored.
            let first = scored.max(begin + 1);
            if first < end {
                questions.push(Question {
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

    /// What a window of so many scored tokens counts in the documentation's loop: the labels that
    /// are not masked, less one. Where nothing is before a window, its first token is among these.
    pub(super) fn weight(self, index: usize, tokens: u64) -> f64 {
        let begins_anew = index == 0 || self.stride >= self.context;
        (tokens - u64::from(!begins_anew)) as f64
    }
}
