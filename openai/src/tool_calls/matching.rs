//! Matching of words and parts of a call syntax at the beginning of a sequence.

use grammar::{MAX_DIGITS, SyntaxElement, SyntaxPart};

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
            let length = count_ascii(input, *count, char::is_ascii_alphanumeric);
            match length {
                _ if length == *count => Match::Yes(length),
                _ if length == input.len() => Match::Partial,
                _ => Match::No,
            }
        }
        SyntaxElement::Number => {
            let length = count_ascii(input, MAX_DIGITS, char::is_ascii_digit);
            match length {
                _ if length < MAX_DIGITS && length == input.len() => Match::Partial,
                0 => Match::No,
                _ => Match::Yes(length),
            }
        }
    }
}

/// Returns the number of characters of a kind at the beginning of `input`, at most `limit`.
fn count_ascii(input: &[CharOrToken], limit: usize, is_counted: fn(&char) -> bool) -> usize {
    let is_counted =
        |unit: &&CharOrToken| matches!(unit, CharOrToken::Char(char) if is_counted(char));
    input.iter().take(limit).take_while(is_counted).count()
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
