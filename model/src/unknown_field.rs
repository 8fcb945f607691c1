//! Unknown fields of a `config.json`, prepared for display to a user.

use serde_json::Value;

/// Maximum number of characters of a name or value that are shown.
const SHOWN_CHARACTERS_MAX: usize = 60;
/// Maximum number of fields that a notice names.
const SHOWN_FIELDS_MAX: usize = 8;

/// An unknown field and its value, both safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField {
    pub name: String,
    pub value: String,
}

impl UnknownField {
    pub(crate) fn new(name: &str, value: &Value) -> UnknownField {
        UnknownField { name: sanitized(name), value: sanitized(&value.to_string()) }
    }
}

/// Returns the beginning of a text from a file, without control characters that a terminal would
/// interpret.
fn sanitized(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(SHOWN_CHARACTERS_MAX)
        .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
        .collect();
    if text.chars().nth(SHOWN_CHARACTERS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Returns a notice about the unknown fields; `None` if there are none.
pub(crate) fn notice(fields: &[UnknownField]) -> Option<String> {
    let shown = fields.iter().take(SHOWN_FIELDS_MAX);
    let mut list: Vec<String> =
        shown.map(|UnknownField { name, value }| format!("{name} = {value}")).collect();
    match fields.len().checked_sub(SHOWN_FIELDS_MAX) {
        Some(more @ 1..) => list.push(format!("{more} more")),
        _ if list.is_empty() => return None,
        _ => {}
    }
    Some(format!(
        "config.json has unknown fields, which are ignored: {}; if one of them changes what the \
         model computes, the answers are wrong",
        list.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_not_known_are_named_without_control_characters() {
        let field = |name: &str, text: &str| UnknownField::new(name, &Value::from(text));
        assert_eq!(notice(&[]), None);
        let one = notice(&[field("a\u{1b}[2J", "\u{9b}x")]).expect("a notice");
        assert!(one.contains("a\u{fffd}[2J = \"\u{fffd}x\"; if"), "{one}");
        let long = field(&"n".repeat(70), "");
        assert_eq!(long.name, format!("{}...", "n".repeat(60)));
        let many = notice(&vec![field("a", "b"); 11]).expect("a notice");
        assert!(many.contains("a = \"b\", 3 more; if"), "{many}");
    }
}
