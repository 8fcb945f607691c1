//! Tool calls of earlier answers, as templates expect them.
//!
//! transformers passes the arguments of a call as an object. Most templates write them as JSON, but
//! those of DeepSeek join them to a text, which requires JSON text. Templates of Kimi K2 write the
//! id of a call, and the model expects it to name the function and count the calls of the
//! conversation, `functions.f:0`. Clients know a call by another id.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

use super::ChatMessage;
use super::json;

const ARGUMENTS: &str = "arguments";
const FUNCTION: &str = "function";
const TOOL_CALLS: &str = "tool_calls";
const TOOL_CALL_ID: &str = "tool_call_id";
/// Prefix of the ids that Kimi K2 expects.
const ID_PREFIX: &str = "functions.";

/// Form in which a template expects the tool calls of earlier answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallRendering {
    /// Arguments are JSON texts.
    joins_arguments: bool,
    /// Ids name functions.
    has_named_ids: bool,
}

impl CallRendering {
    /// Returns what a template expects.
    pub(super) fn from_template(template: &str) -> CallRendering {
        let is_kimi = ["<|tool_call_begin|>", "<|tool_call_argument_begin|>"];
        CallRendering {
            joins_arguments: joins_arguments(template),
            has_named_ids: is_kimi.iter().all(|shown| template.contains(shown)),
        }
    }

    /// Returns the messages with tool calls as the template expects them.
    pub(super) fn apply<'m>(&self, messages: &'m [ChatMessage]) -> Cow<'m, [ChatMessage]> {
        let has_calls = |message: &ChatMessage| {
            message.more.contains_key(TOOL_CALLS) || message.more.contains_key(TOOL_CALL_ID)
        };
        let is_plain = !self.joins_arguments && !self.has_named_ids;
        if is_plain || !messages.iter().any(has_calls) {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        if self.joins_arguments {
            calls_of(&mut messages).for_each(write_arguments);
        }
        if self.has_named_ids {
            name_ids(&mut messages);
        }
        Cow::Owned(messages)
    }
}

/// Returns true if a template joins arguments to a text or prints them, without a filter or a test
/// of their type.
fn joins_arguments(template: &str) -> bool {
    let mut joins = false;
    for (at, _) in template.match_indices(ARGUMENTS) {
        let rest =
            template[at + ARGUMENTS.len()..].trim_start_matches(['"', '\'', ']']).trim_start();
        let filter = rest.strip_prefix('|').map(str::trim_start);
        if rest.starts_with("is ") || filter.is_some_and(|filter| filter.starts_with("tojson")) {
            return false;
        }
        joins |= ["+", "~", "}}", "-}}"].iter().any(|operator| rest.starts_with(operator));
    }
    joins
}

/// Returns the tool calls of all messages.
fn calls_of(messages: &mut [ChatMessage]) -> impl Iterator<Item = &mut Value> {
    messages
        .iter_mut()
        .filter_map(|message| message.more.get_mut(TOOL_CALLS)?.as_array_mut())
        .flatten()
}

/// Replaces the arguments of a call by their JSON text.
fn write_arguments(call: &mut Value) {
    let call = match call.get(FUNCTION) {
        Some(_) => call.get_mut(FUNCTION),
        None => Some(call),
    };
    if let Some(arguments) = call.and_then(|call| call.get_mut(ARGUMENTS))
        && !arguments.is_string()
    {
        *arguments = Value::from(json::dumps(arguments));
    }
}

/// Replaces the ids of calls by ids that name their function and count the calls of the
/// conversation, except ids that already do, and the ids of results accordingly.
fn name_ids(messages: &mut [ChatMessage]) {
    let mut named: HashMap<String, String> = HashMap::new();
    let mut count = 0;
    for message in messages {
        if let Some(calls) = message.more.get_mut(TOOL_CALLS).and_then(Value::as_array_mut) {
            for call in calls {
                let name = call.get(FUNCTION).unwrap_or(call).get("name").and_then(Value::as_str);
                let id = call.get("id").and_then(Value::as_str);
                let (Some(name), false) = (name, id.is_some_and(is_named)) else { continue };
                let new = format!("{ID_PREFIX}{name}:{count}");
                if let Some(id) = id {
                    named.insert(id.to_owned(), new.clone());
                }
                if let Value::Object(call) = call {
                    call.insert("id".to_owned(), new.into());
                }
                count += 1;
            }
        }
        if let Some(id) = message.more.get_mut(TOOL_CALL_ID)
            && let Some(new) = id.as_str().and_then(|id| named.get(id))
        {
            *id = Value::from(new.clone());
        }
    }
}

/// Returns true if an id names a function and counts calls.
fn is_named(id: &str) -> bool {
    let parts = id.strip_prefix(ID_PREFIX).and_then(|rest| rest.rsplit_once(':'));
    parts.is_some_and(|(name, number)| {
        !name.is_empty() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(role: &str, fields: &[(&str, Value)]) -> ChatMessage {
        let more = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        ChatMessage { role: role.to_owned(), content: String::new(), more: more.collect() }
    }

    fn call(id: &str, name: &str, arguments: &Value) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn templates_that_join_arguments_are_told_from_others() {
        for (template, expected) in [
            ("{{ name + '<sep>' + tool['function']['arguments'] + '<end>' }}", true),
            ("{{ call.arguments ~ '}' }}", true),
            ("{{- call.arguments -}}", true),
            ("{{ call.arguments | tojson }}", false),
            ("{{ '<sep>' + call['arguments']|tojson + '<end>' }}", false),
            ("{% if call.arguments is string %}{{ call.arguments }}{% endif %}", false),
            ("{% for k, v in call.arguments|items %}{{ k ~ v }}{% endfor %}", false),
            ("{% set a = call.arguments | tojson %}{{ a + '' }} {{ arguments + '' }}", false),
            ("Write the arguments as JSON.", false),
        ] {
            assert_eq!(joins_arguments(template), expected, "{template}");
        }
    }

    #[test]
    fn joined_arguments_are_json_text() {
        let rendering = CallRendering { joins_arguments: true, has_named_ids: false };
        let object = json!({"b": [1.5, null], "a": "é\"<"});
        let calls = json!([call("x", "f", &object), call("y", "g", &json!("cut {")), 7,
            {"name": "h", "arguments": {}}]);
        let messages = [message("assistant", &[(TOOL_CALLS, calls)])];
        let applied = rendering.apply(&messages);
        let text = json!("{\"b\": [1.5, null], \"a\": \"é\\\"<\"}");
        let expected = json!([call("x", "f", &text), call("y", "g", &json!("cut {")), 7,
            {"name": "h", "arguments": "{}"}]);
        assert_eq!(applied[0].more[TOOL_CALLS], expected);
        let plain = CallRendering { joins_arguments: false, has_named_ids: false };
        assert_eq!(plain.apply(&messages)[..], messages[..]);
    }

    #[test]
    fn ids_name_functions_and_count_calls() {
        let rendering = CallRendering::from_template(
            "<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>",
        );
        let none = json!({});
        let turn = |calls: Value| message("assistant", &[(TOOL_CALLS, calls)]);
        let result = |id: &str| message("tool", &[(TOOL_CALL_ID, json!(id))]);
        let messages = [
            turn(json!([call("call_a", "f", &none), call("call_b", "g.h", &none)])),
            result("call_b"),
            result("call_a"),
            turn(json!([call("functions.f:7", "f", &none), {"function": {"name": "f"}}, "odd"])),
            result("functions.f:7"),
            result("unknown"),
            // A client that repeats an id means the latest call with it.
            turn(json!([call("call_a", "f", &none)])),
            result("call_a"),
        ];
        let applied = rendering.apply(&messages);
        let ids: Vec<String> = applied
            .iter()
            .flat_map(|message| match message.more.get(TOOL_CALLS) {
                Some(calls) => calls.as_array().expect("calls").clone(),
                None => vec![json!({"id": message.more[TOOL_CALL_ID]})],
            })
            .filter_map(|call| Some(call.get("id")?.as_str()?.to_owned()))
            .collect();
        let expected = [
            "functions.f:0",
            "functions.g.h:1",
            "functions.g.h:1",
            "functions.f:0",
            "functions.f:7",
            "functions.f:2",
            "functions.f:7",
            "unknown",
            "functions.f:3",
            "functions.f:3",
        ];
        assert_eq!(ids, expected);
        for odd in ["functions.:1", "functions.f:", "functions.f", "f:1", "functions.f:x"] {
            assert!(!is_named(odd), "{odd}");
        }
    }
}
