//! Tool calls in the format of MiniMax-M2: a list of calls, each argument of which is between its
//! own tags. Texts are not quoted.
//!
//! ```text
//! <minimax:tool_call>
//! <invoke name="f">
//! <parameter name="a">1</parameter>
//! </invoke>
//! </minimax:tool_call>
//! ```

use grammar::{CallSyntax, ParameterTags, SyntaxPart};

use super::parts::{Marker, optional, text, trigger};

const OPEN: &str = "<minimax:tool_call>";
const CLOSE: &str = "</minimax:tool_call>";
const INVOKE: &str = "<invoke name=\"";

pub(super) fn matches_template(template: &str) -> bool {
    template.contains(OPEN) && template.contains(INVOKE)
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (first, last) = (marker(OPEN)?, marker(CLOSE)?);
    Ok(CallSyntax {
        triggers: vec![trigger(first.clone())],
        first: vec![SyntaxPart::Must(first), optional("\n")],
        open: vec![text(INVOKE)],
        middle: vec![text("\">"), optional("\n")],
        parameters: Some(ParameterTags {
            open: vec![text("<parameter name=\"")],
            middle: vec![text("\">")],
            close: vec![text("</parameter>"), optional("\n")],
        }),
        close: vec![text("</invoke>"), optional("\n")],
        last: vec![SyntaxPart::Must(last)],
        ..CallSyntax::default()
    })
}
