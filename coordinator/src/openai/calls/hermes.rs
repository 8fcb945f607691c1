//! Tool calls in the format of Hermes: `{"name": "f", "arguments": {...}}` on a line between
//! `<tool_call>` and `</tool_call>`.

use grammar::{CallSyntax, Part};

use super::parts::{Marker, maybe, name_end_and, object_and_name, text, trigger};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) fn is_shown(template: &str) -> bool {
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
        open: [vec![Part::Must(open), maybe("\n")], object_and_name()].concat(),
        middle: name_end_and("arguments"),
        close: vec![text("}"), maybe("\n"), Part::Must(close)],
        between: vec![maybe("\n")],
        ..CallSyntax::default()
    })
}
