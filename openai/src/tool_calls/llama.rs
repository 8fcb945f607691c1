//! Tool calls in the format of Llama: the whole answer is `{"name": "f", "parameters": {...}}`, in
//! some cases with a type or after a token.

use grammar::{CallSyntax, SyntaxElement, SyntaxPart, Trigger};

use super::parts::{Marker, name_end, optional, text};

const TAG: &str = "<|python_tag|>";
/// Entry that some models write before the function's name, as in the descriptions of functions.
const TYPE: &str = "\"type\": \"function\", ";

pub(super) fn matches_template(template: &str) -> bool {
    // Role of the results of calls.
    template.contains("ipython") && template.contains("parameters")
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let tag = marker(TAG)?;
    let object = |with: &str| SyntaxElement::Text(format!("{{{with}\"name\":"));
    let triggers = [tag.clone(), object(""), object(TYPE)];
    let first = |word| Trigger { word, at_start: true };
    Ok(CallSyntax {
        triggers: triggers.map(first).to_vec(),
        first: vec![SyntaxPart::May(tag)],
        open: vec![text("{"), optional(TYPE), text("\"name\":"), optional(" "), text("\"")],
        middle: name_end("parameters"),
        close: vec![text("}")],
        ..CallSyntax::default()
    })
}
