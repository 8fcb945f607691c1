//! Building blocks of call syntaxes.

use grammar::{SyntaxElement, SyntaxPart, Trigger};

/// Function from the name of a marker to its word: the token of the tokenizer, or the text if it
/// has no such token.
pub(super) type Marker<'m> = &'m dyn Fn(&str) -> Result<SyntaxElement, String>;

pub(super) fn text(text: &str) -> SyntaxPart {
    SyntaxPart::Must(SyntaxElement::Text(text.to_owned()))
}

/// Returns an optional text, which some models omit.
pub(super) fn optional(text: &str) -> SyntaxPart {
    SyntaxPart::May(SyntaxElement::Text(text.to_owned()))
}

pub(super) fn trigger(word: SyntaxElement) -> Trigger {
    Trigger { word, at_start: false }
}

/// Returns the parts of `{"name": "`.
pub(super) fn object_start() -> Vec<SyntaxPart> {
    vec![text("{\"name\":"), optional(" "), text("\"")]
}

/// Returns the parts between the name in such an object and the value of `key`.
pub(super) fn name_end(key: &str) -> Vec<SyntaxPart> {
    vec![text("\","), optional(" "), text(&format!("\"{key}\":")), optional(" ")]
}
