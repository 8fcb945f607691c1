//! Number of tokens in a long text, computed with little memory.

use super::{TextTokenizer, TokenizerError};

/// Maximum number of bytes that are tokenised at a time.
const PART_BYTES: usize = 64 << 10;
/// Number of bytes at the end of a part in which a position for the cut is searched.
const CUT_BYTES: usize = 1 << 10;

/// Minimum number of bytes per permitted token. Shorter texts are tokenised as a whole.
const MIN_BYTES_PER_TOKEN: usize = 8;
/// Maximum number of tokens that a cut adds: those of the word that it divides.
const TOKENS_PER_CUT: usize = 16;

impl TextTokenizer {
    /// Returns the approximate number of tokens of a text if it certainly exceeds `max_tokens`, and
    /// `None` if the text may have fewer.
    ///
    /// A tokenizer needs some 200 bytes of memory per byte of a text, so the tokens of a long text
    /// are counted in parts before it is tokenised.
    ///
    /// # Errors
    /// See [`TextTokenizer::encode`].
    pub fn excess(&self, text: &str, max_tokens: usize) -> Result<Option<usize>, TokenizerError> {
        if text.len() <= max_tokens.saturating_mul(MIN_BYTES_PER_TOKEN).max(PART_BYTES) {
            return Ok(None);
        }
        let (mut tokens, mut cuts, mut rest) = (0, 0, text);
        while !rest.is_empty() {
            let (part, after_cut) = rest.split_at(cut(rest));
            tokens += self.encode(part, false)?.len();
            cuts += 1;
            rest = after_cut;
        }
        Ok((tokens > max_tokens.saturating_add(cuts * TOKENS_PER_CUT)).then_some(tokens))
    }
}

/// Returns the end of the first part: before white space near the limit if there is any.
fn cut(text: &str) -> usize {
    if text.len() <= PART_BYTES {
        return text.len();
    }
    let end = text.floor_char_boundary(PART_BYTES);
    let from = text.floor_char_boundary(end - CUT_BYTES);
    let near = text[from..end].rfind(char::is_whitespace).map(|at| from + at);
    near.unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_text_and_end_at_spaces() {
        let words = "word ".repeat(50_000);
        let runs = "é".repeat(200_000);
        for text in [words.as_str(), runs.as_str(), "", "a", &" ".repeat(PART_BYTES + 1)] {
            let (mut rest, mut parts) = (text, Vec::new());
            while !rest.is_empty() {
                let (part, after_cut) = rest.split_at(cut(rest));
                assert!(!part.is_empty() && part.len() <= PART_BYTES);
                parts.push(part);
                rest = after_cut;
            }
            assert_eq!(parts.concat(), text);
            if text.starts_with('w') {
                assert!(parts[1..].iter().all(|part| part.starts_with(' ')));
            }
        }
    }
}
