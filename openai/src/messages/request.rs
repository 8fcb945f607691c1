//! Bodies of `/v1/messages`, converted to the fields of a chat completion.

use serde_json::{Map, Value, json};

use super::content::read_messages;
use super::tools::{read_tool_choice, read_tools};
use crate::body::known_fields::reject_unknown;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::values::{JsonFields, get_non_null, invalid_value, missing_field};
use crate::chat_extensions::is_chat_extension;
use crate::input_line::{ErrorCode, Rejection};

/// Fields without effect here: they identify the sender, classify the request for a hosted
/// service, or mark prefixes to be cached, which happens automatically.
const IGNORED_FIELDS: [&str; 9] = [
    "model",
    "metadata",
    "service_tier",
    "speed",
    "inference_geo",
    "cache_control",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
];

/// Fields that chat completions have too.
const SHARED_FIELDS: [&str; 5] = ["max_tokens", "stream", "temperature", "top_p", "top_k"];

/// Names of fields in chat completions and here, for the messages of rejections.
pub const RENAMED_FIELDS: [(&str, &str); 2] =
    [("stop", "stop_sequences"), ("response_format", "output_config")];

/// Converts a body to the fields of a chat completion.
///
/// # Errors
/// Returns a rejection that names the first field that is unknown, unsupported or malformed.
pub fn into_chat_fields(
    mut fields: JsonFields,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<JsonFields, Rejection> {
    fields.retain(|_, value| !value.is_null());
    let messages = fields.shift_remove("messages").ok_or_else(|| missing_field("messages"))?;
    let messages = read_messages(fields.shift_remove("system"), messages)?;
    let mut chat = Map::new();
    if messages.ends_with_assistant_text() {
        chat.insert("continue_final_message".to_owned(), true.into());
        chat.insert("add_generation_prompt".to_owned(), false.into());
    }
    chat.insert("messages".to_owned(), messages.into_value());
    for (name, value) in fields {
        match name.as_str() {
            "stop_sequences" => {
                check_stop_sequences(&value)?;
                chat.insert("stop".to_owned(), value);
            }
            "tools" => {
                chat.insert(name, read_tools(value, unknown_fields)?);
            }
            "tool_choice" => read_tool_choice(&value, unknown_fields, &mut chat)?,
            "thinking" => read_thinking(&value, unknown_fields, &mut chat)?,
            "output_config" => read_output_config(&value, unknown_fields, &mut chat)?,
            "output_format" => read_output_format(&value, &mut chat)?,
            "context_management" => check_context_management(&value, unknown_fields)?,
            "container" | "mcp_servers" => {
                let is_empty = value.as_array().is_some_and(Vec::is_empty);
                unknown_fields.check_known(&name, is_empty)?;
            }
            name if IGNORED_FIELDS.contains(&name) => {}
            field if SHARED_FIELDS.contains(&field) || is_chat_extension(field) => {
                merge(name, value, &mut chat);
            }
            name => unknown_fields.check_known(name, false)?,
        }
    }
    Ok(chat)
}

/// Inserts a field. Variables of the template that the client sets itself take precedence over
/// those that other fields imply.
fn merge(name: String, value: Value, chat: &mut JsonFields) {
    match (chat.get_mut(&name), value) {
        (Some(Value::Object(implied)), Value::Object(given)) => implied.extend(given),
        (_, value) => {
            chat.insert(name, value);
        }
    }
}

fn check_stop_sequences(value: &Value) -> Result<(), Rejection> {
    let is_text = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    match value.as_array() {
        Some(texts) if texts.iter().all(is_text) => Ok(()),
        _ => Err(invalid_value("stop_sequences", "an array of non-empty strings")),
    }
}

/// Reads `thinking`, which sets the variables by which templates switch reasoning on and off, and
/// limits the reasoning.
fn read_thinking(
    value: &Value,
    unknown_fields: &UnknownFieldPolicy,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let wanted = "{\"type\": \"enabled\", \"budget_tokens\": ...}, {\"type\": \"adaptive\"} or \
                  {\"type\": \"disabled\"}";
    let refused = || invalid_value("thinking", wanted);
    let thinking = value.as_object().ok_or_else(refused)?;
    reject_unknown(thinking, "thinking", &["type", "budget_tokens", "display"], unknown_fields)?;
    let budget = get_non_null(thinking, "budget_tokens");
    if budget.is_some_and(|budget| budget.as_u64().is_none_or(|budget| budget == 0)) {
        return Err(refused());
    }
    let thinks = match thinking.get("type").and_then(Value::as_str) {
        Some("enabled" | "adaptive" | "between_tools") => true,
        Some("disabled") => false,
        _ => return Err(refused()),
    };
    if let Some(budget) = budget.and_then(Value::as_u64).filter(|_| thinks) {
        let budget = u32::try_from(budget).unwrap_or(u32::MAX);
        chat.insert("thinking_token_budget".to_owned(), budget.into());
    }
    let mut variables = json!({"enable_thinking": thinks, "thinking": thinks});
    if let Some(Value::Object(given)) = chat.shift_remove("chat_template_kwargs")
        && let Some(variables) = variables.as_object_mut()
    {
        variables.extend(given);
    }
    chat.insert("chat_template_kwargs".to_owned(), variables);
    Ok(())
}

/// Reads `output_config`: `effort` and `format`.
fn read_output_config(
    value: &Value,
    unknown_fields: &UnknownFieldPolicy,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let wanted = "an object with 'effort' and 'format'";
    let config = value.as_object().ok_or_else(|| invalid_value("output_config", wanted))?;
    let known = ["effort", "format", "task_budget"];
    reject_unknown(config, "output_config", &known, unknown_fields)?;
    if let Some(effort) = get_non_null(config, "effort") {
        let effort = match effort.as_str() {
            Some(effort @ ("low" | "medium" | "high")) => effort,
            // Templates know no higher one.
            Some("xhigh" | "max") => "high",
            _ => return Err(invalid_value("effort", "'low', 'medium', 'high', 'xhigh' or 'max'")),
        };
        chat.insert("reasoning_effort".to_owned(), effort.into());
    }
    match get_non_null(config, "format") {
        Some(format) => read_output_format(format, chat),
        None => Ok(()),
    }
}

fn read_output_format(format: &Value, chat: &mut JsonFields) -> Result<(), Rejection> {
    let wanted = "{\"type\": \"json_schema\", \"schema\": {...}}";
    let schema = get_schema(format).ok_or_else(|| invalid_value("format", wanted))?;
    let named = json!({"name": "output", "schema": schema});
    let response_format = json!({"type": "json_schema", "json_schema": named});
    chat.insert("response_format".to_owned(), response_format);
    Ok(())
}

fn get_schema(format: &Value) -> Option<&Value> {
    format.get("schema").filter(|schema| schema.is_object() && format["type"] == "json_schema")
}

/// Accepts edits that clear reasoning of earlier turns: that is decided by the chat template.
fn check_context_management(
    value: &Value,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<(), Rejection> {
    let edits = value.get("edits").and_then(Value::as_array);
    let clears_thinking =
        |edit: &Value| edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_thinking"));
    let is_accepted = edits.is_none_or(|edits| edits.iter().all(clears_thinking));
    let message = "Unsupported value: 'context_management' is only supported with edits that clear \
                   thinking. Remove it.";
    let rejection = Rejection::new(ErrorCode::UnsupportedField, message);
    if is_accepted {
        return Ok(());
    }
    unknown_fields
        .ignore_or_reject("context_management", rejection.with_param("context_management"))
}
