//! Input items, converted to messages of a chat completion.

use serde_json::{Map, Value, json};

use super::items::ENCRYPTED_PREFIX;
use crate::body::values::{JsonFields, get_non_null, invalid_value};
use crate::chat_messages::ChatMessages;
use crate::input_line::{ErrorCode, Rejection};

const INPUT_FORMAT: &str = "a string or an array of input items: messages, function_call, \
                            function_call_output and reasoning";

/// Returns the items of `input`; a string is a message of the user.
///
/// # Errors
/// Returns a rejection if the value is neither a string nor an array.
pub(super) fn read_items(input: Value) -> Result<Vec<Value>, Rejection> {
    match input {
        Value::String(text) => {
            let content = json!([{"type": "input_text", "text": text}]);
            Ok(vec![json!({"type": "message", "role": "user", "content": content})])
        }
        Value::Array(items) => Ok(items),
        _ => Err(invalid_value("input", INPUT_FORMAT)),
    }
}

/// Returns the id of the item that an input item refers to; `None` if it is no reference.
pub fn referenced_id(item: &Value) -> Option<&str> {
    item["id"].as_str().filter(|_| item["type"] == "item_reference")
}

/// Converts items and appends them to `chat`.
///
/// # Errors
/// Returns a rejection of a malformed or unsupported item.
pub(super) fn convert_items(items: Vec<Value>, chat: &mut ChatMessages) -> Result<(), Rejection> {
    for item in items {
        let Value::Object(item) = item else { return Err(invalid_value("input", INPUT_FORMAT)) };
        convert_item(item, chat)?;
    }
    Ok(())
}

fn convert_item(mut item: JsonFields, chat: &mut ChatMessages) -> Result<(), Rejection> {
    let is_message = get_non_null(&item, "type").is_none() && item.contains_key("role");
    let kind = match item.shift_remove("type") {
        Some(Value::String(kind)) => kind,
        _ if is_message => "message".to_owned(),
        _ => return Err(invalid_value("input", INPUT_FORMAT)),
    };
    match kind.as_str() {
        "message" => convert_message(item, chat),
        "function_call" => {
            let wanted = "function_call items with the strings 'call_id', 'name' and 'arguments'";
            let [id, name, arguments] = take_texts(&mut item, ["call_id", "name", "arguments"])
                .ok_or_else(|| invalid_value("input", wanted))?;
            chat.push_call(id.into(), name.into(), arguments.into());
            Ok(())
        }
        "function_call_output" => {
            let wanted = "function_call_output items with 'call_id' and 'output'";
            let refused = || invalid_value("input", wanted);
            let [id] = take_texts(&mut item, ["call_id"]).ok_or_else(refused)?;
            let output = item.shift_remove("output").ok_or_else(refused)?;
            chat.push_result(id.into(), read_content(output)?);
            Ok(())
        }
        "reasoning" => {
            if let Some(text) = reasoning_text(&item) {
                chat.push_reasoning(&text);
            }
            Ok(())
        }
        other => Err(unsupported("input item", other, INPUT_FORMAT)),
    }
}

fn take_texts<const N: usize>(item: &mut JsonFields, names: [&str; N]) -> Option<[String; N]> {
    let mut texts = names.map(|_| String::new());
    for (text, name) in texts.iter_mut().zip(names) {
        match item.shift_remove(name) {
            Some(Value::String(found)) => *text = found,
            _ => return None,
        }
    }
    Some(texts)
}

fn convert_message(mut message: JsonFields, chat: &mut ChatMessages) -> Result<(), Rejection> {
    let wanted = "messages with 'role' (user, assistant, system or developer) and 'content'";
    let refused = || invalid_value("input", wanted);
    let content = read_content(message.shift_remove("content").ok_or_else(refused)?)?;
    match message.get("role").and_then(Value::as_str) {
        Some("assistant") => chat.push_assistant(&content),
        Some(role @ ("user" | "system" | "developer")) => chat.push_text(role, content),
        _ => return Err(refused()),
    }
    Ok(())
}

/// Reads a content that is a string or an array of parts, which are all texts or refusals.
fn read_content(content: Value) -> Result<String, Rejection> {
    let wanted = "content that is a string or an array of parts of type 'input_text', \
                  'output_text' or 'refusal'";
    let refused = || invalid_value("input", wanted);
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(refused()),
    };
    let mut all = String::new();
    for part in &parts {
        let field = match part["type"].as_str().ok_or_else(refused)? {
            "input_text" | "output_text" | "text" => "text",
            "refusal" => "refusal",
            other => return Err(unsupported("content part", other, wanted)),
        };
        all.push_str(part[field].as_str().ok_or_else(refused)?);
    }
    Ok(all)
}

/// Returns the text of a reasoning item; `None` if it has none, or was written by another service.
fn reasoning_text(item: &JsonFields) -> Option<String> {
    let parts = item.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if parts.is_empty() {
        let encrypted = item.get("encrypted_content").and_then(Value::as_str)?;
        return encrypted.strip_prefix(ENCRYPTED_PREFIX).map(str::to_owned);
    }
    Some(parts.iter().filter_map(|part| part["text"].as_str()).collect())
}

fn unsupported(what: &str, kind: &str, supported: &str) -> Rejection {
    let shown: String = kind.chars().take(80).collect();
    let message = format!("Unsupported {what} of type '{shown}': supported is {supported}.");
    Rejection::new(ErrorCode::UnsupportedField, message).with_param("input")
}

/// Completes input items as they are stored: each has a type and an id, which ends in `suffix` and
/// its index unless it has one, and the content of messages is a list of parts.
pub(super) fn complete_items(items: Vec<Value>, suffix: &str) -> Vec<Value> {
    let complete = |(index, item)| match item {
        Value::Object(item) => Value::Object(complete_item(item, index, suffix)),
        other => other,
    };
    items.into_iter().enumerate().map(complete).collect()
}

fn complete_item(mut item: JsonFields, index: usize, suffix: &str) -> JsonFields {
    let kind = get_non_null(&item, "type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "message" => "msg",
        "function_call" => "fc",
        "function_call_output" => "fco",
        _ => "rs",
    };
    if kind == "message"
        && let Some(Value::String(text)) = item.get_mut("content")
    {
        let text = std::mem::take(text);
        let is_answer = item.get("role").is_some_and(|role| role == "assistant");
        let part = if is_answer { "output_text" } else { "input_text" };
        let mut content = Map::from_iter([("type".to_owned(), part.into())]);
        content.insert("text".to_owned(), text.into());
        if is_answer {
            content.insert("annotations".to_owned(), json!([]));
        }
        item.insert("content".to_owned(), json!([content]));
    }
    if get_non_null(&item, "id").is_none() {
        item.insert("id".to_owned(), format!("{prefix}_{suffix}_in{index}").into());
    }
    item.insert("type".to_owned(), kind.into());
    item
}
