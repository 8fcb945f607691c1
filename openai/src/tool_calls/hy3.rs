//! Tool calls in the format of Hy3: a list of calls, each argument of which is a key and a value.
//! Texts are not quoted. The names of all tags of the release end in `:opensource`, which its
//! template inserts with `format`; those of the preview do not.
//!
//! ```text
//! <tool_calls>
//! <tool_call>f<tool_sep>
//! <arg_key>a</arg_key>
//! <arg_value>1</arg_value>
//! </tool_call>
//! </tool_calls>
//! ```

use grammar::{CallSyntax, SyntaxPart};

use super::parts::{Marker, key_value_tags, optional, trigger};

/// End of the names of the release's tags.
pub(super) const RELEASE_SUFFIX: &str = ":opensource";

pub(super) fn matches_preview_template(template: &str) -> bool {
    ["<tool_calls>", "<tool_sep>", "<arg_key>"].iter().all(|shown| template.contains(shown))
}

pub(super) fn matches_release_template(template: &str) -> bool {
    let is_shown = |name: &str| {
        template.contains(&format!("<{name}{{}}>"))
            || template.contains(&format!("<{name}{RELEASE_SUFFIX}>"))
    };
    template.contains(RELEASE_SUFFIX)
        && ["tool_calls", "tool_sep", "arg_key"].map(is_shown) == [true; 3]
}

/// Returns the syntax with tags whose names end in `suffix`.
pub(super) fn syntax(marker: Marker<'_>, suffix: &str) -> Result<CallSyntax, String> {
    let tag = |name: &str| marker(&format!("<{name}{suffix}>"));
    let first = tag("tool_calls")?;
    let must = |name: &str| tag(name).map(SyntaxPart::Must);
    Ok(CallSyntax {
        triggers: vec![trigger(first.clone())],
        first: vec![SyntaxPart::Must(first), optional("\n")],
        open: vec![must("tool_call")?],
        middle: vec![must("tool_sep")?, optional("\n")],
        parameters: Some(key_value_tags(marker, suffix)?),
        close: vec![must("/tool_call")?, optional("\n")],
        last: vec![must("/tool_calls")?],
        ..CallSyntax::default()
    })
}
