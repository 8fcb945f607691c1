//! How many tokens a long text has, within little memory.

use super::{TextTokenizer, TokenizerError};

/// Bytes of a text that are tokenised at a time.
const PART_BYTES: usize = 64 << 10;
/// Bytes at the end of a part in which a place to cut at is looked for.
const CUT_BYTES: usize = 1 << 10;

/// A text of fewer bytes for each token that it may have is tokenised at once.
const MIN_BYTES_PER_TOKEN: usize = 8;
/// Number of tokens that a cut may add: those of the word that it falls into.
const TOKENS_PER_CUT: usize = 16;

impl TextTokenizer {
    /// The number of tokens of a text that certainly has more than `max_tokens`, about; `None`
    /// where it may have fewer.
    ///
    /// A tokenizer takes some 200 bytes of memory for each byte of a text, so a long one is counted
    /// part by part before it is tokenised.
    ///
    /// # Errors
    /// As [`TextTokenizer::encode`].
    pub fn excess(&self, text: &str, max_tokens: usize) -> Result<Option<usize>, TokenizerError> {
        if text.len() <= max_tokens.saturating_mul(MIN_BYTES_PER_TOKEN).max(PART_BYTES) {
            return Ok(None);
        }
        let (mut tokens, mut cuts, mut rest) = (0, 0, text);
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(cut(rest));
            tokens += self.encode(part, false)?.len();
            cuts += 1;
            rest = behind;
        }
        Ok((tokens > max_tokens.saturating_add(cuts * TOKENS_PER_CUT)).then_some(tokens))
    }
}

/// Where a part ends: before a space or the end of a line if there is one near.
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
                let (part, behind) = rest.split_at(cut(rest));
                assert!(!part.is_empty() && part.len() <= PART_BYTES);
                parts.push(part);
                rest = behind;
            }
            assert_eq!(parts.concat(), text);
            if text.starts_with('w') {
                assert!(parts[1..].iter().all(|part| part.starts_with(' ')));
            }
        }
    }
}
