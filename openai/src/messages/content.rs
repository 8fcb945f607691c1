//! System prompt and messages, converted to messages of a chat completion.

use serde_json::Value;

use crate::body::values::{JsonFields, invalid_value};
use crate::chat_messages::ChatMessages;
use crate::input_line::{ErrorCode, Rejection};

const MESSAGES_FORMAT: &str = "an array of objects with 'role' (user, assistant or system) and \
                               'content' (a string or an array of content blocks)";

/// Converts `system` and `messages`.
///
/// # Errors
/// Returns a rejection of a malformed message or an unsupported content block.
pub(super) fn read_messages(
    system: Option<Value>,
    messages: Value,
) -> Result<ChatMessages, Rejection> {
    let mut chat = ChatMessages::default();
    if let Some(system) = system {
        let text = read_text(system, "system")?;
        if !text.is_empty() {
            chat.push_text("system", text);
        }
    }
    let Value::Array(messages) = messages else {
        return Err(invalid_value("messages", MESSAGES_FORMAT));
    };
    if messages.is_empty() {
        let message = "Invalid value for 'messages': must not be empty.";
        return Err(Rejection::new(ErrorCode::EmptyPrompt, message).with_param("messages"));
    }
    for message in messages {
        read_message(message, &mut chat)?;
    }
    Ok(chat)
}

fn read_message(message: Value, chat: &mut ChatMessages) -> Result<(), Rejection> {
    let refused = || invalid_value("messages", MESSAGES_FORMAT);
    let Value::Object(mut message) = message else { return Err(refused()) };
    let content = message.shift_remove("content").ok_or_else(refused)?;
    match message.get("role").and_then(Value::as_str) {
        Some("user") => read_user(content, chat),
        Some("assistant") => read_assistant(content, chat),
        Some("system") => {
            chat.push_text("system", read_text(content, "messages")?);
            Ok(())
        }
        _ => Err(refused()),
    }
}

/// Reads a content of the user. Results of tools become messages of their own.
fn read_user(content: Value, chat: &mut ChatMessages) -> Result<(), Rejection> {
    for block in content_blocks(content)? {
        match block {
            Block::Text(text) => chat.push_or_continue_user(text),
            Block::Other(kind, mut block) if kind == "tool_result" => {
                let id = block.shift_remove("tool_use_id").filter(Value::is_string);
                let id = id.ok_or_else(|| {
                    invalid_value("messages", "tool_result blocks with 'tool_use_id'")
                })?;
                let content = block.shift_remove("content").unwrap_or_default();
                let text =
                    if content.is_null() { String::new() } else { read_text(content, "messages")? };
                chat.push_result(id, text);
            }
            Block::Other(kind, _) => return Err(unsupported_block(&kind)),
        }
    }
    Ok(())
}

fn read_assistant(content: Value, chat: &mut ChatMessages) -> Result<(), Rejection> {
    let text_of = |block: &mut JsonFields, name: &str| match block.shift_remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(invalid_value("messages", &format!("{name} blocks with '{name}'"))),
    };
    for block in content_blocks(content)? {
        match block {
            Block::Text(text) => chat.push_assistant(&text),
            Block::Other(kind, mut block) => match kind.as_str() {
                "thinking" => chat.push_reasoning(&text_of(&mut block, "thinking")?),
                // Encrypted by another service.
                "redacted_thinking" => {}
                "tool_use" => {
                    let mut take = |name: &str, is_valid: fn(&Value) -> bool| {
                        block.shift_remove(name).filter(is_valid).ok_or_else(|| {
                            let wanted = "tool_use blocks with 'id', 'name' and 'input', an object";
                            invalid_value("messages", wanted)
                        })
                    };
                    let id = take("id", Value::is_string)?;
                    let name = take("name", Value::is_string)?;
                    chat.push_call(id, name, take("input", Value::is_object)?);
                }
                kind => return Err(unsupported_block(kind)),
            },
        }
    }
    Ok(())
}

/// A block of a content.
enum Block {
    Text(String),
    /// Block of another type.
    Other(String, JsonFields),
}

/// Returns the blocks of a content, which is one block of text if it is a string.
fn content_blocks(content: Value) -> Result<Vec<Block>, Rejection> {
    let refused = || invalid_value("messages", MESSAGES_FORMAT);
    match content {
        Value::String(text) => Ok(vec![Block::Text(text)]),
        Value::Array(blocks) => blocks.into_iter().map(read_block).collect(),
        _ => Err(refused()),
    }
}

fn read_block(block: Value) -> Result<Block, Rejection> {
    let wanted = "content blocks with a 'type'; those of type 'text' have a 'text'";
    let refused = || invalid_value("messages", wanted);
    let Value::Object(mut block) = block else { return Err(refused()) };
    match block.shift_remove("type") {
        Some(Value::String(kind)) if kind == "text" => match block.shift_remove("text") {
            Some(Value::String(text)) => Ok(Block::Text(text)),
            _ => Err(refused()),
        },
        Some(Value::String(kind)) => Ok(Block::Other(kind, block)),
        _ => Err(refused()),
    }
}

/// Reads a string or an array of text blocks, which are separated by newlines.
fn read_text(content: Value, field: &str) -> Result<String, Rejection> {
    let blocks = match content {
        Value::String(text) => return Ok(text),
        Value::Array(blocks) => blocks,
        _ => return Err(invalid_value(field, "a string or an array of text blocks")),
    };
    let mut all = String::new();
    for (index, block) in blocks.into_iter().enumerate() {
        match read_block(block)? {
            Block::Text(text) => {
                if index > 0 {
                    all.push('\n');
                }
                all.push_str(&text);
            }
            Block::Other(kind, _) => return Err(unsupported_block(&kind)),
        }
    }
    Ok(all)
}

fn unsupported_block(kind: &str) -> Rejection {
    let shown: String = kind.chars().take(80).collect();
    let message = format!(
        "Unsupported content block of type '{shown}': only 'text', 'thinking', 'tool_use' and \
         'tool_result' are supported, and only 'text' within a system prompt or a tool result."
    );
    Rejection::new(ErrorCode::UnsupportedField, message).with_param("messages")
}
