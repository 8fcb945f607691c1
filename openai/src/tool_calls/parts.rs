//! Building blocks of call syntaxes.

use grammar::{ParameterTags, SyntaxElement, SyntaxPart, Trigger};

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

/// Returns the tags of arguments that are written as keys and values, `<arg_key>a</arg_key>` and
/// `<arg_value>1</arg_value>`. `suffix` is the end of each tag's name.
pub(super) fn key_value_tags(marker: Marker<'_>, suffix: &str) -> Result<ParameterTags, String> {
    let tag = |name: &str| marker(&format!("<{name}{suffix}>")).map(SyntaxPart::Must);
    Ok(ParameterTags {
        open: vec![tag("arg_key")?],
        middle: vec![tag("/arg_key")?, optional("\n"), tag("arg_value")?],
        close: vec![tag("/arg_value")?, optional("\n")],
    })
}
