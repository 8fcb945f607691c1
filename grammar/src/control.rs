//! Characters that JSON texts can only contain as `\u00XX`: control characters without an escape of
//! their own, and U+007F, which the parser always escapes.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::Value;

use crate::subschemas;

/// Returns true if a character can only be written as `\u00XX`.
fn is_control(char: char) -> bool {
    matches!(char, '\0'..='\x07' | '\x0b' | '\x0e'..='\x1f' | '\x7f')
}

/// Returns true if a schema contains strings that need such characters.
pub(crate) fn is_needed(root: &Value) -> bool {
    subschemas::all(root).any(|schema| {
        let values = ["const", "enum"].into_iter().filter_map(|name| schema.get(name));
        let pattern = schema.get("pattern").and_then(Value::as_str);
        values.into_iter().any(has_control) || pattern.is_some_and(pattern_needs)
    })
}

fn has_control(value: &Value) -> bool {
    match value {
        Value::String(text) => text.chars().any(is_control),
        Value::Array(items) => items.iter().any(has_control),
        Value::Object(fields) => fields.values().any(has_control),
        _ => false,
    }
}

/// Returns true if a part of a pattern matches nothing but such characters.
fn pattern_needs(pattern: &str) -> bool {
    let Ok(hir) = regex_syntax::parse(pattern) else { return false };
    let mut rest = vec![&hir];
    while let Some(hir) = rest.pop() {
        if is_control_alone(hir) {
            return true;
        }
        rest.extend(hir.kind().subs());
    }
    false
}

fn is_control_alone(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.iter().any(|byte| is_control(char::from(*byte))),
        HirKind::Class(Class::Unicode(class)) => {
            let mut all = class.ranges().iter();
            !class.ranges().is_empty()
                && all.all(|range| {
                    range.end() <= '\x7f' && range_is_control(range.start(), range.end())
                })
        }
        HirKind::Class(Class::Bytes(class)) => {
            let mut all = class.ranges().iter();
            !class.ranges().is_empty()
                && all.all(|range| {
                    range.end() <= 0x7f
                        && range_is_control(range.start().into(), range.end().into())
                })
        }
        _ => false,
    }
}

fn range_is_control(first: char, last: char) -> bool {
    (first..=last).all(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_need_control_characters_are_found() {
        for pattern in [r"^\x01$", "a\u{7f}", r"^[\x00-\x07]+$", r"\x{1f}?"] {
            assert!(pattern_needs(pattern), "{pattern}");
        }
        for pattern in [r"^\t\n$", "^.*$", r"[\x00-\x20]", r"\s", "é"] {
            assert!(!pattern_needs(pattern), "{pattern}");
        }
    }
}
