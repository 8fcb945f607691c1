//! Messages without content, as an assistant's that only calls functions.
//!
//! transformers tells templates that it is null. Some ask for that and leave such messages out or
//! write their calls; most take content for a text, and would fail or write "None". So null is what
//! the first kind is told, and an empty text what the second is.

use minijinja::Value;
use serde::Serialize;
use serde_json::Map;

use super::Message;

const CONTENT: &str = "content";

/// A message as a template is told of it.
#[derive(Serialize)]
struct Told<'a> {
    role: &'a str,
    content: Option<&'a str>,
    #[serde(flatten)]
    more: Map<String, serde_json::Value>,
}

/// The messages as a template is told of them.
pub(super) fn told(messages: &[Message], null_is_told: bool) -> Value {
    let told = messages.iter().map(|message| {
        let mut more = message.more.clone();
        let has_none = more.shift_remove(CONTENT).is_some() && message.content.is_empty();
        let content = Some(message.content.as_str()).filter(|_| !(has_none && null_is_told));
        Value::from_serialize(Told { role: &message.role, content, more })
    });
    Value::from(told.collect::<Vec<_>>())
}

/// Returns true for a template that compares a content with null.
pub(super) fn is_asked_for(template: &str) -> bool {
    template.match_indices(CONTENT).any(|(at, _)| {
        let behind = template[at + CONTENT.len()..].trim_start_matches(['"', '\'', ']', ')']);
        let mut words = behind.split_whitespace();
        let verb = words.next();
        let mut object = words.next().unwrap_or_default();
        if verb == Some("is") && object == "not" {
            object = words.next().unwrap_or_default();
        }
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        let end = object.find(|c| !is_name(c)).unwrap_or(object.len());
        behind.starts_with(char::is_whitespace)
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
            assert_eq!(is_asked_for(template), expected, "{template}");
        }
    }
}
