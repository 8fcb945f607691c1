//! Tool calls in the formats of Mistral. Earlier models write `[TOOL_CALLS]` and a list of
//! `{"name": "f", "arguments": {...}}`. Later models write `[TOOL_CALLS]`, the name, `[ARGS]` and
//! the arguments for each call, in some versions with an id before `[ARGS]`.

use grammar::{CallSyntax, SyntaxElement, SyntaxPart};

use super::parts::{Marker, name_end, object_start, optional, text, trigger};

const CALLS: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";
/// Number of letters and digits of an id.
const ID_LENGTH: usize = 9;

pub(super) fn matches_list_template(template: &str) -> bool {
    template.contains(CALLS) && !template.contains(ARGUMENTS)
}

pub(super) fn matches_named_template(template: &str) -> bool {
    template.contains(CALLS) && template.contains(ARGUMENTS)
}

pub(super) fn list_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let calls = marker(CALLS)?;
    Ok(CallSyntax {
        triggers: vec![trigger(calls.clone())],
        first: vec![SyntaxPart::Must(calls), optional(" "), text("[")],
        open: object_start(),
        middle: name_end("arguments"),
        close: vec![text("}")],
        between: vec![text(","), optional(" ")],
        last: vec![text("]")],
        ..CallSyntax::default()
    })
}

pub(super) fn named_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let calls = marker(CALLS)?;
    Ok(CallSyntax {
        triggers: vec![trigger(calls.clone())],
        open: vec![SyntaxPart::Must(calls)],
        middle: vec![
            // Clients receive ids of our own instead.
            SyntaxPart::MayAll(vec![marker(ID)?, SyntaxElement::Alphanumeric(ID_LENGTH)]),
            SyntaxPart::Must(marker(ARGUMENTS)?),
        ],
        ..CallSyntax::default()
    })
}
