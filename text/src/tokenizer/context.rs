//! Decoding of an answer in the context of its prompt: a decoder may treat the first token of a
//! text differently (SentencePiece's strips its space), and the first token of an answer is not the
//! first of a text.

use super::{GrowingTokens, TextTokenizer, TokenizerError};

/// Minimum number of a prompt's last tokens that precede an answer when it is decoded, as in vLLM.
const MIN_CONTEXT_TOKENS: usize = 4;
/// Maximum number of a prompt's last tokens that precede an answer. More than the minimum are used
/// only if the text would not begin with a whole character.
const MAX_CONTEXT_TOKENS: usize = 24;

impl TextTokenizer {
    /// Returns the end of `prompt` as the beginning of a growing sequence. An incomplete character
    /// at the end is completed by the tokens that follow.
    ///
    /// If the prompt has no text, because it consists of special tokens only, the sequence has no
    /// context. With `keeps_space`, the sequence then grows as if it followed a text.
    ///
    /// # Errors
    /// See [`TextTokenizer::decode`].
    pub fn grow_behind(
        &self,
        prompt: &[u32],
        keeps_space: bool,
    ) -> Result<GrowingTokens, TokenizerError> {
        let is_text = |token: &u32| !self.is_special(*token);
        let known: Vec<u32> = prompt.iter().copied().filter(is_text).collect();
        let context = if keeps_space && self.decode(&known)?.is_empty() {
            self.any_text()
        } else {
            self.context(&known)?.to_vec()
        };
        let mut stream = self.stream();
        for token in context {
            stream.push(token)?;
        }
        Ok(stream.growing)
    }

    /// Returns the first token that has a text.
    fn any_text(&self) -> Vec<u32> {
        let has_text = |token: &u32| {
            let text = self.decode(&[*token]).unwrap_or_default();
            !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER)
        };
        (0..self.vocab_size() as u32).find(has_text).into_iter().collect()
    }

    /// Returns the shortest suffix of the tokens that begins with a whole character, within the
    /// limits of its length.
    fn context<'t>(&self, known: &'t [u32]) -> Result<&'t [u32], TokenizerError> {
        let last = |count: usize| &known[known.len().saturating_sub(count)..];
        for count in MIN_CONTEXT_TOKENS..MAX_CONTEXT_TOKENS.min(known.len()) {
            let text = self.decode(last(count))?;
            let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
            if !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER) {
                return Ok(last(count));
            }
        }
        Ok(last(MAX_CONTEXT_TOKENS))
    }
}
