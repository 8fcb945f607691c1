//! Messages without content, such as an assistant's that only calls functions.
//!
//! transformers passes null to templates for their content. Some templates check for null and omit
//! such messages or write their calls. Most take content for a string, and would fail or write
//! "None". Therefore only templates that check for null receive it; all others receive an empty
//! string.

use minijinja::Value;
use serde::Serialize;
use serde_json::Map;

use super::ChatMessage;

const CONTENT: &str = "content";

/// A message in the structure that templates expect.
#[derive(Serialize)]
struct TemplateMessage<'a> {
    role: &'a str,
    content: Option<&'a str>,
    #[serde(flatten)]
    more: Map<String, serde_json::Value>,
}

/// Converts messages to a template value. A missing content is null if `keeps_null`, and an empty
/// string otherwise.
pub(super) fn messages_value(messages: &[ChatMessage], keeps_null: bool) -> Value {
    let messages = messages.iter().map(|message| {
        let mut more = message.more.clone();
        let has_none = more.shift_remove(CONTENT).is_some() && message.content.is_empty();
        let content = Some(message.content.as_str()).filter(|_| !(has_none && keeps_null));
        Value::from_serialize(TemplateMessage { role: &message.role, content, more })
    });
    Value::from(messages.collect::<Vec<_>>())
}

/// Returns true if the template compares a content with null.
pub(super) fn tests_for_null(template: &str) -> bool {
    template.match_indices(CONTENT).any(|(at, _)| {
        let rest = template[at + CONTENT.len()..].trim_start_matches(['"', '\'', ']', ')']);
        let mut words = rest.split_whitespace();
        let verb = words.next();
        let mut object = words.next().unwrap_or_default();
        if verb == Some("is") && object == "not" {
            object = words.next().unwrap_or_default();
        }
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        let end = object.find(|c| !is_name(c)).unwrap_or(object.len());
        rest.starts_with(char::is_whitespace)
            && matches!(verb, Some("is" | "==" | "!="))
            && matches!(&object[..end], "none" | "None")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_that_ask_for_null_are_told_from_others() {
        for (template, expected) in [
            ("{% if message['content'] is none %}", true),
            ("{% if message.content is not none and x %}", true),
            ("{% if message[\"content\"] == None %}", true),
            ("{% if (message.content) is none%}", true),
            ("{% if content is  not\nnone%}", true),
            ("{% if message.content is string %}", false),
            ("{% if message.content_type is none %}", false),
            ("{% if message.content is not nonesuch %}", false),
            ("{{ message.content }} is none", false),
            ("content", false),
        ] {
            assert_eq!(tests_for_null(template), expected, "{template}");
        }
    }
}
