//! `tools` and `tool_choice`, converted to fields of a chat completion.

use serde_json::{Map, Value, json};

use crate::body::known_fields::reject_unknown;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::values::{JsonFields, invalid_value};
use crate::input_line::{ErrorCode, Rejection};

/// Fields of a function. Those after the first five do not affect an answer here.
const FUNCTION_FIELDS: [&str; 9] = [
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "allowed_callers",
    "defer_loading",
    "output_schema",
    "async",
];

/// Converts `tools`. Tools that a hosted service runs are rejected by name.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn convert_tools(
    tools: &Value,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<Vec<Value>, Rejection> {
    let wanted = "an array of {\"type\": \"function\", \"name\": ..., \"description\": ..., \
                  \"parameters\": {...}}";
    let refused = || invalid_value("tools", wanted);
    let tools = tools.as_array().ok_or_else(refused)?;
    let mut functions = Vec::with_capacity(tools.len());
    for tool in tools {
        let tool = tool.as_object().ok_or_else(refused)?;
        let kind = tool.get("type").and_then(Value::as_str).ok_or_else(refused)?;
        if kind != "function" {
            let rejection = unsupported_tool(kind);
            unknown_fields.ignore_or_reject(&format!("tools.{kind}"), rejection)?;
            continue;
        }
        reject_unknown(tool, "tools", &FUNCTION_FIELDS, unknown_fields)?;
        let mut function = Map::new();
        for name in ["name", "description", "parameters", "strict"] {
            if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
                function.insert(name.to_owned(), value.clone());
            }
        }
        functions.push(json!({"type": "function", "function": function}));
    }
    Ok(functions)
}

fn unsupported_tool(kind: &str) -> Rejection {
    let shown: String = kind.chars().take(80).collect();
    let message = format!(
        "Unsupported tool type '{shown}': only tools of type 'function', which the client runs, \
         are supported. Remove it."
    );
    Rejection::new(ErrorCode::UnsupportedField, message).with_param("tools")
}

/// Converts `tool_choice`. Functions that it does not allow are removed from `tools`.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn convert_tool_choice(
    choice: &Value,
    tools: &mut Vec<Value>,
) -> Result<Value, Rejection> {
    let wanted = "'none', 'auto', 'required', {\"type\": \"function\", \"name\": ...} or \
                  {\"type\": \"allowed_tools\", \"mode\": ..., \"tools\": [...]}";
    let refused = || invalid_value("tool_choice", wanted);
    let Some(fields) = choice.as_object() else {
        return if choice.is_string() { Ok(choice.clone()) } else { Err(refused()) };
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("function") => {
            let name = fields.get("name").and_then(Value::as_str).ok_or_else(refused)?;
            Ok(json!({"type": "function", "function": {"name": name}}))
        }
        Some("allowed_tools") => {
            let allowed = allowed_names(fields).ok_or_else(refused)?;
            let name_of = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
            let names: Vec<Option<String>> = tools.iter().map(name_of).collect();
            let is_known = |name: &&str| names.iter().any(|known| known.as_deref() == Some(*name));
            if !allowed.iter().all(is_known) {
                return Err(invalid_value("tool_choice", "a choice of some of the 'tools'"));
            }
            tools.retain(|tool| name_of(tool).is_some_and(|name| allowed.contains(&&*name)));
            let mode = fields.get("mode").filter(|mode| *mode == "auto" || *mode == "required");
            mode.cloned().ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

/// Returns the names of the functions that may be called, at least one.
fn allowed_names(choice: &JsonFields) -> Option<Vec<&str>> {
    let tools = choice.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty())?;
    tools.iter().map(|tool| tool["name"].as_str().filter(|_| tool["type"] == "function")).collect()
}
