//! Matching of words and parts of a call syntax at the beginning of a sequence.

use grammar::{Part, Word};

use crate::openai::said::Said;

/// Result of matching the beginning of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match<T> {
    No,
    /// The sequence matches so far, but ends too early.
    Partly,
    Yes(T),
}

impl<T> Match<T> {
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Match<U> {
        match self {
            Match::No => Match::No,
            Match::Partly => Match::Partly,
            Match::Yes(value) => Match::Yes(to(value)),
        }
    }
}

/// Matches a word at the beginning of `said`; returns the length of the word.
pub(super) fn match_word(word: &Word, said: &[Said]) -> Match<usize> {
    match word {
        Word::Token(token) => match said.first() {
            None => Match::Partly,
            Some(first) if *first == Said::Token(*token) => Match::Yes(1),
            Some(_) => Match::No,
        },
        Word::Text(text) => match_text(text, said),
        Word::Alphanumeric(count) => {
            let is_one =
                |said: &&Said| matches!(said, Said::Char(char) if char.is_ascii_alphanumeric());
            let length = said.iter().take(*count).take_while(is_one).count();
            match length {
                _ if length == *count => Match::Yes(length),
                _ if length == said.len() => Match::Partly,
                _ => Match::No,
            }
        }
    }
}

/// Matches a text at the beginning of `said`; returns the length of the text.
pub(super) fn match_text(text: &str, said: &[Said]) -> Match<usize> {
    let mut length = 0;
    for (char, said) in text.chars().zip(said) {
        if *said != Said::Char(char) {
            return Match::No;
        }
        length += 1;
    }
    if length == text.chars().count() { Match::Yes(length) } else { Match::Partly }
}

/// Matches consecutive parts at the beginning of `said`; returns their length. Optional parts may
/// be missing.
pub(super) fn match_all<'p>(
    parts: impl IntoIterator<Item = &'p Part>,
    said: &[Said],
) -> Match<usize> {
    let mut length = 0;
    for part in parts {
        let (words, may_lack) = match part {
            Part::Must(word) => (std::slice::from_ref(word), false),
            Part::May(word) => (std::slice::from_ref(word), true),
            Part::MayAll(words) => (words.as_slice(), true),
        };
        match match_words(words, &said[length..]) {
            Match::Yes(one) => length += one,
            Match::Partly => return Match::Partly,
            Match::No if may_lack => {}
            Match::No => return Match::No,
        }
    }
    Match::Yes(length)
}

/// Matches consecutive words at the beginning of `said`; returns their length.
fn match_words(words: &[Word], said: &[Said]) -> Match<usize> {
    let mut length = 0;
    for word in words {
        match match_word(word, &said[length..]) {
            Match::Yes(one) => length += one,
            other => return other,
        }
    }
    Match::Yes(length)
}
