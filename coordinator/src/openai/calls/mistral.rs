//! Tool calls in the formats of Mistral. Earlier models write `[TOOL_CALLS]` and a list of
//! `{"name": "f", "arguments": {...}}`. Later models write `[TOOL_CALLS]`, the name, `[ARGS]` and
//! the arguments for each call, in some versions with an id before `[ARGS]`.

use grammar::{CallSyntax, Part, Word};

use super::parts::{Marker, maybe, name_end_and, object_and_name, text, trigger};

const CALLS: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";
const ID: &str = "[CALL_ID]";
/// Number of letters and digits of an id.
const ID_LENGTH: usize = 9;

pub(super) fn is_list(template: &str) -> bool {
    template.contains(CALLS) && !template.contains(ARGUMENTS)
}

pub(super) fn is_named(template: &str) -> bool {
    template.contains(CALLS) && template.contains(ARGUMENTS)
}

pub(super) fn list_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let calls = marker(CALLS)?;
    Ok(CallSyntax {
        triggers: vec![trigger(calls.clone())],
        first: vec![Part::Must(calls), maybe(" "), text("[")],
        open: object_and_name(),
        middle: name_end_and("arguments"),
        close: vec![text("}")],
        between: vec![text(","), maybe(" ")],
        last: vec![text("]")],
        ..CallSyntax::default()
    })
}

pub(super) fn named_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let calls = marker(CALLS)?;
    Ok(CallSyntax {
        triggers: vec![trigger(calls.clone())],
        open: vec![Part::Must(calls)],
        middle: vec![
            // Clients receive ids of our own instead.
            Part::MayAll(vec![marker(ID)?, Word::Alphanumeric(ID_LENGTH)]),
            Part::Must(marker(ARGUMENTS)?),
        ],
        ..CallSyntax::default()
    })
}
