//! Tool calls in the format of Kimi K2: a list of calls between tokens, each of which has JSON and
//! an id that consists of the function's name and a number, `functions.f:0`.

use grammar::{CallSyntax, SyntaxElement, SyntaxPart};

use super::parts::{Marker, text, trigger};

const FIRST: &str = "<|tool_calls_section_begin|>";
const OPEN: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const CLOSE: &str = "<|tool_call_end|>";
const LAST: &str = "<|tool_calls_section_end|>";

pub(super) fn matches_template(template: &str) -> bool {
    [FIRST, OPEN, ARGUMENTS].iter().all(|shown| template.contains(shown))
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let first = marker(FIRST)?;
    let must = |name: &str| marker(name).map(SyntaxPart::Must);
    Ok(CallSyntax {
        triggers: vec![trigger(first.clone())],
        first: vec![SyntaxPart::Must(first)],
        open: vec![must(OPEN)?, text("functions.")],
        // Clients receive ids of our own instead; the chat template receives these again.
        middle: vec![text(":"), SyntaxPart::Must(SyntaxElement::Number), must(ARGUMENTS)?],
        close: vec![must(CLOSE)?],
        last: vec![must(LAST)?],
        ..CallSyntax::default()
    })
}
