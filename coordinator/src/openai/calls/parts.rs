//! What ways to write calls are put together of.

use grammar::{Part, Trigger, Word};

/// What a marker is written as: a token where the tokenizer has one, else its text.
pub(super) type Marker<'m> = &'m dyn Fn(&str) -> Result<Word, String>;

pub(super) fn text(text: &str) -> Part {
    Part::Must(Word::Text(text.to_owned()))
}

/// Models write it, and some leave it out.
pub(super) fn maybe(text: &str) -> Part {
    Part::May(Word::Text(text.to_owned()))
}

pub(super) fn trigger(word: Word) -> Trigger {
    Trigger { word, at_start: false }
}

/// `{"name": "`.
pub(super) fn object_and_name() -> Vec<Part> {
    vec![text("{\"name\":"), maybe(" "), text("\"")]
}

/// What follows the name in such an object, up to the value of `key`.
pub(super) fn name_end_and(key: &str) -> Vec<Part> {
    vec![text("\","), maybe(" "), text(&format!("\"{key}\":")), maybe(" ")]
}
