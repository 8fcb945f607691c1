//! A text as windows, as transformers' documentation evaluates the perplexity of models with a
//! fixed context: a window begins every so many tokens, and of each those tokens are scored that no
//! window before it had. Every token but the first is scored once.

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
        // Of the first window the first token is what the others follow.
        let (mut scored, mut begin) = (1, 0);
        while scored < tokens.len() {
            let end = tokens.len().min(begin + self.context);
            questions.push(Question {
                line: questions.len() + 1,
                custom_id: format!("tokens-{scored}-{end}"),
                prompt: tokens[begin..scored].to_vec(),
                continuations: vec![tokens[scored..end].to_vec()],
            });
            (scored, begin) = (end, begin + self.stride);
        }
        questions
    }
}
