//! Parts of the syntax of calls, and their translation to rules.

use serde::{Deserialize, Serialize};

use crate::names::literal;

/// A part of the syntax around names and arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SyntaxPart {
    Must(SyntaxElement),
    May(SyntaxElement),
    /// All of these or none.
    MayAll(Vec<SyntaxElement>),
}

/// An element of the syntax.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SyntaxElement {
    /// A non-empty text.
    Text(String),
    /// A special token, which no text contains.
    Token(u32),
    /// A number of ASCII letters and digits, at a position where no other text is possible.
    Alphanumeric(usize),
    /// A number of one to [`MAX_DIGITS`] ASCII digits, which a text or token that does not begin
    /// with a digit follows.
    Number,
}

/// Maximum number of digits of a [`SyntaxElement::Number`].
pub const MAX_DIGITS: usize = 6;

/// Representation of special tokens in rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpecialTokens {
    Included,
    /// Left out, since the vocabulary consists of bytes alone.
    Omitted,
}

/// Returns the parts as an expression of a rule; an empty literal if there are none.
pub(crate) fn lark_rule(parts: &[SyntaxPart], tokens: SpecialTokens) -> String {
    let word = |word: &SyntaxElement| match (word, tokens) {
        (SyntaxElement::Text(text), _) => literal(text),
        (SyntaxElement::Token(token), SpecialTokens::Included) => format!("<[{token}]>"),
        (SyntaxElement::Token(_), SpecialTokens::Omitted) => literal(""),
        (SyntaxElement::Alphanumeric(count), _) => format!("/[0-9A-Za-z]{{{count}}}/"),
        (SyntaxElement::Number, _) => format!("/[0-9]{{1,{MAX_DIGITS}}}/"),
    };
    let part = |part: &SyntaxPart| match part {
        SyntaxPart::Must(must) => word(must),
        SyntaxPart::May(may) => format!("({})?", word(may)),
        SyntaxPart::MayAll(all) => {
            let all: Vec<String> = all.iter().map(word).collect();
            format!("({})?", all.join(" "))
        }
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    if parts.is_empty() { literal("") } else { parts.join(" ") }
}
