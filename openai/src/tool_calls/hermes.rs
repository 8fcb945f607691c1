//! Tool calls in the format of Hermes: `{"name": "f", "arguments": {...}}` on a line between
//! `<tool_call>` and `</tool_call>`.

use grammar::{CallSyntax, SyntaxPart};

use super::parts::{Marker, name_end, object_start, optional, text, trigger};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) fn matches_template(template: &str) -> bool {
    // Other formats also have the tag, but not around such JSON.
    let others = ["<function=", "<arg_key>"];
    template.contains(OPEN)
        && template.contains("arguments")
        && !others.iter().any(|other| template.contains(other))
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (open, close) = (marker(OPEN)?, marker(CLOSE)?);
    Ok(CallSyntax {
        triggers: vec![trigger(open.clone())],
        open: [vec![SyntaxPart::Must(open), optional("\n")], object_start()].concat(),
        middle: name_end("arguments"),
        close: vec![text("}"), optional("\n"), SyntaxPart::Must(close)],
        between: vec![optional("\n")],
        ..CallSyntax::default()
    })
}
