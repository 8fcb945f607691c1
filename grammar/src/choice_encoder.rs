//! Spelling of texts in the tokens that a model would use. Other tokens with the same text are less
//! likely than they should be, and an answer limited to few tokens could end within a text.

use std::collections::HashMap;

use crate::vocabulary::Vocabulary;

/// Maximum length of tokens that are considered, in bytes: in vocabularies only runs of spaces and
/// line ends are longer.
const MAX_TOKEN_BYTES: usize = 64;

/// Spells texts in tokens.
pub(crate) struct ChoiceEncoder<'v, E> {
    vocabulary: &'v Vocabulary,
    /// Encodes a text with the model's tokenizer.
    encode: E,
    /// Tokens by their bytes, collected when the tokenizer's tokens do not spell a text.
    tokens: Option<HashMap<&'v [u8], u32>>,
}

impl<'v, E: Fn(&str) -> Option<Vec<u32>>> ChoiceEncoder<'v, E> {
    pub(crate) fn new(vocabulary: &'v Vocabulary, encode: E) -> ChoiceEncoder<'v, E> {
        ChoiceEncoder { vocabulary, encode, tokens: None }
    }

    /// Returns the tokenizer's tokens of a text within another one, or the fewest tokens that spell
    /// it; `None` if none do.
    pub(crate) fn encode_choice(&mut self, text: &str) -> Option<Vec<u32>> {
        // A tokenizer may insert a space before a text, but not after a line end.
        let within = ["", "\n"].iter().find_map(|before| {
            let tokens = (self.encode)(&format!("{before}{text}"))?;
            self.suffix_matching(&tokens, text.as_bytes())
        });
        within.or_else(|| self.fewest(text.as_bytes()))
    }

    /// Returns the trailing tokens that spell the text.
    fn suffix_matching(&self, tokens: &[u32], text: &[u8]) -> Option<Vec<u32>> {
        let mut left = text;
        for (index, token) in tokens.iter().enumerate().rev() {
            let word = self.vocabulary.word(*token).filter(|word| !word.is_empty())?;
            left = left.strip_suffix(word)?;
            if left.is_empty() {
                return Some(tokens[index..].to_vec());
            }
        }
        None
    }

    /// Returns the fewest tokens that spell a text, preferring longer ones first.
    fn fewest(&mut self, text: &[u8]) -> Option<Vec<u32>> {
        let Vocabulary { words, ends } = self.vocabulary;
        let tokens = self.tokens.get_or_insert_with(|| {
            let mut tokens = HashMap::new();
            for (word, token) in words.iter().map(Vec::as_slice).zip(0..) {
                if !word.is_empty() && !ends.contains(&token) {
                    // Among equal words the first token is used.
                    tokens.entry(word).or_insert(token);
                }
            }
            tokens
        });
        // Minimum number of tokens from each position on, with the first of them and its length.
        let mut best: Vec<Option<(usize, u32, usize)>> = vec![None; text.len()];
        best.push(Some((0, 0, 0)));
        for from in (0..text.len()).rev() {
            let longest = MAX_TOKEN_BYTES.min(text.len() - from);
            let steps = (1..=longest).rev().filter_map(|length| {
                let token = tokens.get(&text[from..from + length])?;
                let (count, ..) = best[from + length]?;
                Some((count + 1, *token, length))
            });
            best[from] = steps.min_by_key(|(count, ..)| *count);
        }
        let (mut spelled, mut from) = (Vec::new(), 0);
        while from < text.len() {
            let (_, token, length) = best[from]?;
            spelled.push(token);
            from += length;
        }
        Some(spelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let words = ["a", "b", "ab", "ba", " ab", " ", "\n", "abb", "ab", ""];
        Vocabulary {
            words: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
            ends: vec![9],
        }
    }

    #[test]
    fn the_tokenizers_tokens_come_first() {
        let vocabulary = vocabulary();
        let spell = |text: &str, encoded: &[(&str, &[u32])]| {
            let encode = |text: &str| {
                let found = encoded.iter().find(|(known, _)| *known == text);
                found.map(|(_, tokens)| tokens.to_vec())
            };
            ChoiceEncoder::new(&vocabulary, encode).encode_choice(text)
        };
        assert_eq!(spell("ab", &[("ab", &[0, 1])]), Some(vec![0, 1]));
        // A tokenizer that inserts a space before a text.
        assert_eq!(spell("ab", &[("ab", &[4]), ("\nab", &[5, 6, 2])]), Some(vec![2]));
        assert_eq!(spell(" ab", &[(" ab", &[5, 4])]), Some(vec![4]));
        // A tokenizer that normalizes, or cannot encode the text.
        assert_eq!(spell("abab", &[("abab", &[0]), ("\nabab", &[6, 0])]), Some(vec![2, 2]));
        assert_eq!(spell("abc", &[]), None);
        // A special token spells nothing.
        assert_eq!(spell("ab", &[("ab", &[9, 2]), ("\nab", &[9])]), Some(vec![2]));
    }

    #[test]
    fn the_fewest_tokens_spell_what_the_tokenizer_does_not() {
        let vocabulary = vocabulary();
        let mut speller = ChoiceEncoder::new(&vocabulary, |_: &str| None);
        assert_eq!(speller.encode_choice("ab"), Some(vec![2]));
        assert_eq!(
            speller.encode_choice("abba"),
            Some(vec![7, 0]),
            "not one more, and the longest first"
        );
        assert_eq!(speller.encode_choice("aab"), Some(vec![0, 2]));
    }
}
