//! `tools` and `tool_choice`, converted to fields of a chat completion.

use serde_json::{Map, Value, json};

use crate::body::known_fields::reject_unknown;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::values::{JsonFields, invalid_value, read_flag};
use crate::input_line::{ErrorCode, Rejection};

/// Fields of a tool. Those after the first five do not affect an answer here.
const TOOL_FIELDS: [&str; 10] = [
    "name",
    "description",
    "input_schema",
    "strict",
    "type",
    "cache_control",
    "input_examples",
    "allowed_callers",
    "defer_loading",
    "eager_input_streaming",
];

/// Converts `tools`.
///
/// # Errors
/// Returns a rejection of a malformed tool, or one that the hosted service runs itself.
pub(super) fn read_tools(
    tools: Value,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<Value, Rejection> {
    let wanted = "an array of {\"name\": ..., \"description\": ..., \"input_schema\": {...}}";
    let refused = || invalid_value("tools", wanted);
    let Value::Array(tools) = tools else { return Err(refused()) };
    let mut functions = Vec::with_capacity(tools.len());
    for tool in tools {
        let Value::Object(mut tool) = tool else { return Err(refused()) };
        match tool.get("type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if kind == "custom" => {}
            Some(Value::String(kind)) => {
                let rejection = unsupported_tool(kind);
                unknown_fields.ignore_or_reject(&format!("tools.{kind}"), rejection)?;
                continue;
            }
            Some(_) => return Err(refused()),
        }
        reject_unknown(&tool, "tools", &TOOL_FIELDS, unknown_fields)?;
        let mut function = Map::new();
        let renamed = [("name", "name"), ("description", "description"), ("strict", "strict")];
        for (from, to) in renamed.into_iter().chain([("input_schema", "parameters")]) {
            if let Some(value) = tool.shift_remove(from).filter(|value| !value.is_null()) {
                function.insert(to.to_owned(), value);
            }
        }
        if !function.get("parameters").is_some_and(Value::is_object) {
            return Err(refused());
        }
        functions.push(json!({"type": "function", "function": function}));
    }
    Ok(Value::Array(functions))
}

fn unsupported_tool(kind: &str) -> Rejection {
    let shown: String = kind.chars().take(80).collect();
    let message = format!(
        "Unsupported tool type '{shown}': only tools with an 'input_schema', which the client \
         runs, are supported. Remove it."
    );
    Rejection::new(ErrorCode::UnsupportedField, message).with_param("tools")
}

/// Converts `tool_choice` to `tool_choice` and `parallel_tool_calls`.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_tool_choice(
    choice: &Value,
    unknown_fields: &UnknownFieldPolicy,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let wanted = "{\"type\": \"auto\"}, {\"type\": \"any\"}, {\"type\": \"none\"} or {\"type\": \
                  \"tool\", \"name\": ...}";
    let refused = || invalid_value("tool_choice", wanted);
    let choice = choice.as_object().ok_or_else(refused)?;
    let known = ["type", "name", "disable_parallel_tool_use"];
    reject_unknown(choice, "tool_choice", &known, unknown_fields)?;
    let converted = match choice.get("type").and_then(Value::as_str) {
        Some("auto") => "auto".into(),
        Some("any") => "required".into(),
        Some("none") => "none".into(),
        Some("tool") => {
            let name = choice.get("name").and_then(Value::as_str).ok_or_else(refused)?;
            json!({"type": "function", "function": {"name": name}})
        }
        _ => return Err(refused()),
    };
    chat.insert("tool_choice".to_owned(), converted);
    if read_flag(choice, "disable_parallel_tool_use")? {
        chat.insert("parallel_tool_calls".to_owned(), false.into());
    }
    Ok(())
}
