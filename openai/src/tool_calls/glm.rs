//! Tool calls in the format of GLM-4.5 to 4.7 and GLM-5: each argument is a key and a value, and
//! texts are not quoted. Later models omit the newlines.
//!
//! ```text
//! <tool_call>f
//! <arg_key>a</arg_key>
//! <arg_value>1</arg_value>
//! </tool_call>
//! ```

use grammar::{CallSyntax, SyntaxPart};

use super::parts::{Marker, key_value_tags, optional, trigger};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const KEY: &str = "<arg_key>";

pub(super) fn matches_template(template: &str) -> bool {
    template.contains(OPEN) && template.contains(KEY) && !template.contains("<tool_sep")
}

pub(super) fn syntax(marker: Marker<'_>) -> Result<CallSyntax, String> {
    let (open, close) = (marker(OPEN)?, marker(CLOSE)?);
    Ok(CallSyntax {
        triggers: vec![trigger(open.clone())],
        open: vec![SyntaxPart::Must(open)],
        middle: vec![optional("\n")],
        parameters: Some(key_value_tags(marker, "")?),
        close: vec![SyntaxPart::Must(close)],
        between: vec![optional("\n")],
        ..CallSyntax::default()
    })
}
