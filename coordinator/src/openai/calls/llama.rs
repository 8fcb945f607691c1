//! Tool calls in the format of Llama: the whole answer is `{"name": "f", "parameters": {...}}`, in
//! some cases with a type or after a token.

use grammar::{CallSyntax, Part, Trigger, Word};

use super::parts::{Marker, maybe, name_end_and, text};

const TAG: &str = "<|python_tag|>";
/// Entry that some models write before the function's name, as in the descriptions of functions.
const TYPE: &str = "\"type\": \"function\", ";

pub(super) fn is_shown(template: &str) -> bool {
    // Role of the results of calls.
    template.contains("ipython") && template.contains("parameters")
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let tag = marker(TAG)?;
    let object = |with: &str| Word::Text(format!("{{{with}\"name\":"));
    let triggers = [tag.clone(), object(""), object(TYPE)];
    let first = |word| Trigger { word, at_start: true };
    Ok(CallSyntax {
        triggers: triggers.map(first).to_vec(),
        first: vec![Part::May(tag)],
        open: vec![text("{"), maybe(TYPE), text("\"name\":"), maybe(" "), text("\"")],
        middle: name_end_and("parameters"),
        close: vec![text("}")],
        ..CallSyntax::default()
    })
}
