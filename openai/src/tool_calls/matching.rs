//! Matching of words and parts of a call syntax at the beginning of a sequence.

use grammar::{SyntaxElement, SyntaxPart};

use crate::char_or_token::CharOrToken;

/// Result of matching the beginning of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match<T> {
    No,
    /// The sequence matches so far, but ends too early.
    Partial,
    Yes(T),
}

impl<T> Match<T> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Match<U> {
        match self {
            Match::No => Match::No,
            Match::Partial => Match::Partial,
            Match::Yes(value) => Match::Yes(to(value)),
        }
    }
}

/// Matches a word at the beginning of `unit`; returns the length of the word.
pub(super) fn match_word(word: &SyntaxElement, input: &[CharOrToken]) -> Match<usize> {
    match word {
        SyntaxElement::Token(token) => match input.first() {
            None => Match::Partial,
            Some(first) if *first == CharOrToken::Token(*token) => Match::Yes(1),
            Some(_) => Match::No,
        },
        SyntaxElement::Text(text) => match_text(text, input),
        SyntaxElement::Alphanumeric(count) => {
            let is_alphanumeric = |unit: &&CharOrToken| match unit {
                CharOrToken::Char(char) => char.is_ascii_alphanumeric(),
                CharOrToken::Token(_) => false,
            };
            let length = input.iter().take(*count).take_while(is_alphanumeric).count();
            match length {
                _ if length == *count => Match::Yes(length),
                _ if length == input.len() => Match::Partial,
                _ => Match::No,
            }
        }
    }
}

/// Matches a text at the beginning of `unit`; returns the length of the text.
pub(super) fn match_text(text: &str, input: &[CharOrToken]) -> Match<usize> {
    let mut length = 0;
    for (char, unit) in text.chars().zip(input) {
        if *unit != CharOrToken::Char(char) {
            return Match::No;
        }
        length += 1;
    }
    if length == text.chars().count() { Match::Yes(length) } else { Match::Partial }
}

/// Matches consecutive parts at the beginning of `input`; returns their length. Optional parts may
/// be missing.
pub(super) fn match_all<'p>(
    parts: impl IntoIterator<Item = &'p SyntaxPart>,
    input: &[CharOrToken],
) -> Match<usize> {
    let mut length = 0;
    for part in parts {
        let (words, is_optional) = match part {
            SyntaxPart::Must(word) => (std::slice::from_ref(word), false),
            SyntaxPart::May(word) => (std::slice::from_ref(word), true),
            SyntaxPart::MayAll(words) => (words.as_slice(), true),
        };
        match match_words(words, &input[length..]) {
            Match::Yes(matched) => length += matched,
            Match::Partial => return Match::Partial,
            Match::No if is_optional => {}
            Match::No => return Match::No,
        }
    }
    Match::Yes(length)
}

/// Matches consecutive words at the beginning of `input`; returns their length.
fn match_words(words: &[SyntaxElement], input: &[CharOrToken]) -> Match<usize> {
    let mut length = 0;
    for word in words {
        match match_word(word, &input[length..]) {
            Match::Yes(matched) => length += matched,
            other => return other,
        }
    }
    Match::Yes(length)
}
