//! Tool calls in the formats of DeepSeek: a list of calls between tokens. V3 and R1 write a type,
//! a name, and JSON in a fenced block; V3.1 writes a name and JSON. V4 writes each argument between
//! its own tags, which say whether it is a text, not quoted, or JSON. The token in its tags is also
//! part of texts.
//!
//! ```text
//! <｜DSML｜tool_calls>
//! <｜DSML｜invoke name="f">
//! <｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>
//! </｜DSML｜invoke>
//! </｜DSML｜tool_calls>
//! ```

use grammar::{CallSyntax, ParameterTags, SyntaxElement, SyntaxPart};

use super::parts::{Marker, optional, text, trigger};

const FIRST: &str = "<｜tool▁calls▁begin｜>";
const OPEN: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const CLOSE: &str = "<｜tool▁call▁end｜>";
const LAST: &str = "<｜tool▁calls▁end｜>";
const FENCE: &str = "```";

pub(super) fn matches_fenced_template(template: &str) -> bool {
    template.contains(FIRST) && template.contains(FENCE)
}

pub(super) fn matches_plain_template(template: &str) -> bool {
    template.contains(FIRST) && !template.contains(FENCE)
}

/// Returns true for V4's tags. Those of V3.2 are around `function_calls`.
pub(super) fn matches_markup_template(template: &str) -> bool {
    template.contains("｜DSML｜") && !template.contains("function_calls")
}

pub(super) fn markup_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let first = marker("<｜DSML｜tool_calls>")?;
    Ok(CallSyntax {
        triggers: vec![trigger(first.clone())],
        first: vec![SyntaxPart::Must(first), optional("\n")],
        open: vec![text("<｜DSML｜invoke name=\"")],
        middle: vec![text("\">"), optional("\n"), optional("\n")],
        parameters: Some(ParameterTags {
            open: vec![text("<｜DSML｜parameter name=\"")],
            middle: vec![text("\" string=\""), optional("true"), optional("false"), text("\">")],
            close: vec![text("</｜DSML｜parameter>"), optional("\n")],
        }),
        close: vec![text("</｜DSML｜invoke>"), optional("\n")],
        last: vec![text("</｜DSML｜tool_calls>")],
        ..CallSyntax::default()
    })
}

pub(super) fn fenced_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (open, separator) = (marker(OPEN)?, marker(SEPARATOR)?);
    Ok(CallSyntax {
        open: vec![SyntaxPart::Must(open), text("function"), SyntaxPart::Must(separator)],
        middle: vec![text("\n```json\n")],
        close: vec![text("\n```"), SyntaxPart::Must(marker(CLOSE)?)],
        between: vec![optional("\n")],
        ..list_syntax(marker)?
    })
}

pub(super) fn plain_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let must = |word: SyntaxElement| vec![SyntaxPart::Must(word)];
    Ok(CallSyntax {
        open: must(marker(OPEN)?),
        middle: must(marker(SEPARATOR)?),
        close: must(marker(CLOSE)?),
        ..list_syntax(marker)?
    })
}

/// Returns the syntax around a list of calls.
fn list_syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let first = marker(FIRST)?;
    Ok(CallSyntax {
        triggers: vec![trigger(first.clone())],
        first: vec![SyntaxPart::Must(first)],
        last: vec![SyntaxPart::Must(marker(LAST)?)],
        ..CallSyntax::default()
    })
}
