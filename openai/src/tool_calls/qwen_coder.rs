//! Tool calls in the format of Qwen3-Coder and Qwen3.5: each argument is between its own tags, and
//! texts are not quoted.
//!
//! ```text
//! <tool_call>
//! <function=f>
//! <parameter=a>
//! 1
//! </parameter>
//! </function>
//! </tool_call>
//! ```

use grammar::{CallSyntax, ParameterTags, SyntaxElement, SyntaxPart};

use super::parts::{Marker, optional, text, trigger};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";

pub(super) fn matches_template(template: &str) -> bool {
    [OPEN, FUNCTION, PARAMETER].iter().all(|shown| template.contains(shown))
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (open, close) = (marker(OPEN)?, marker(CLOSE)?);
    Ok(CallSyntax {
        // Models occasionally omit the first tag.
        triggers: vec![trigger(open.clone()), trigger(SyntaxElement::Text(FUNCTION.to_owned()))],
        open: vec![SyntaxPart::May(open), optional("\n"), text(FUNCTION)],
        middle: vec![text(">\n")],
        parameters: Some(ParameterTags {
            open: vec![text(PARAMETER)],
            middle: vec![text(">\n")],
            close: vec![text("\n</parameter>\n")],
        }),
        close: vec![text("</function>"), optional("\n"), SyntaxPart::May(close)],
        between: vec![optional("\n")],
        ..CallSyntax::default()
    })
}
