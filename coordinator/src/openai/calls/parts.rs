//! Building blocks of call syntaxes.

use grammar::{Part, Trigger, Word};

/// Function from the name of a marker to its word: the token of the tokenizer, or the text if it
/// has no such token.
pub(super) type Marker<'m> = &'m dyn Fn(&str) -> Result<Word, String>;

pub(super) fn text(text: &str) -> Part {
    Part::Must(Word::Text(text.to_owned()))
}

/// Returns an optional text, which some models omit.
pub(super) fn maybe(text: &str) -> Part {
    Part::May(Word::Text(text.to_owned()))
}

pub(super) fn trigger(word: Word) -> Trigger {
    Trigger { word, at_start: false }
}

/// Returns the parts of `{"name": "`.
pub(super) fn object_and_name() -> Vec<Part> {
    vec![text("{\"name\":"), maybe(" "), text("\"")]
}

/// Returns the parts between the name in such an object and the value of `key`.
pub(super) fn name_end_and(key: &str) -> Vec<Part> {
    vec![text("\","), maybe(" "), text(&format!("\"{key}\":")), maybe(" ")]
}
