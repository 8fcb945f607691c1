//! What a request asks to be continued, in all forms that the two endpoints have.

use serde_json::Value;

use super::values::{Fields, given, invalid, misplaced, missing};
use crate::job::codec::Turn;
use crate::job::item::{Endpoint, ErrorCode, Rejection};

/// What a request asks to be continued, before tokenisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawPrompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<Turn>),
}

/// Reads what `endpoint` has continued.
///
/// # Errors
/// A rejection of what is missing, malformed or the other endpoint's.
pub(super) fn read(fields: &Fields, endpoint: Endpoint) -> Result<Vec<RawPrompt>, Rejection> {
    match endpoint {
        Endpoint::Completions => {
            misplaced(fields, "messages", "/v1/completions")?;
            read_prompt(given(fields, "prompt").ok_or_else(|| missing("prompt"))?)
        }
        Endpoint::ChatCompletions => {
            misplaced(fields, "prompt", "/v1/chat/completions")?;
            let messages = given(fields, "messages").ok_or_else(|| missing("messages"))?;
            Ok(vec![RawPrompt::Chat(read_messages(messages)?)])
        }
    }
}

const PROMPT_FORMS: &str = "a text, a list of token ids, a list of texts or a list of lists of \
                            token ids";

fn read_prompt(value: &Value) -> Result<Vec<RawPrompt>, Rejection> {
    match value {
        Value::String(text) => Ok(vec![RawPrompt::Text(text.clone())]),
        Value::Array(list) => match list.first() {
            None => Ok(vec![RawPrompt::Tokens(Vec::new())]),
            Some(Value::Number(_)) => Ok(vec![RawPrompt::Tokens(read_tokens(list)?)]),
            Some(Value::String(_)) => list
                .iter()
                .map(|entry| {
                    let text = entry.as_str().ok_or_else(|| invalid("prompt", PROMPT_FORMS))?;
                    Ok(RawPrompt::Text(text.to_owned()))
                })
                .collect(),
            Some(_) => list
                .iter()
                .map(|entry| {
                    let ids = entry.as_array().ok_or_else(|| invalid("prompt", PROMPT_FORMS))?;
                    Ok(RawPrompt::Tokens(read_tokens(ids)?))
                })
                .collect(),
        },
        _ => Err(invalid("prompt", PROMPT_FORMS)),
    }
}

fn read_tokens(list: &[Value]) -> Result<Vec<u32>, Rejection> {
    list.iter()
        .map(|entry| match entry.as_u64() {
            // Too large for u32 is certainly outside the vocabulary, which is judged later.
            Some(id) => Ok(u32::try_from(id).unwrap_or(u32::MAX)),
            None if entry.is_i64() => Err(Rejection::new(
                ErrorCode::TokenOutOfVocabulary,
                format!("The token id {entry} is negative."),
            )),
            None => Err(invalid("prompt", PROMPT_FORMS)),
        })
        .collect()
}

fn read_messages(value: &Value) -> Result<Vec<Turn>, Rejection> {
    let form = "a list of objects with \"role\" and \"content\"";
    let list = value.as_array().ok_or_else(|| invalid("messages", form))?;
    if list.is_empty() {
        return Err(Rejection::new(ErrorCode::EmptyPrompt, "The list of messages is empty."));
    }
    list.iter()
        .map(|entry| {
            let message = entry.as_object().ok_or_else(|| invalid("messages", form))?;
            let extra = message.iter().find(|(key, value)| {
                !["role", "content"].contains(&key.as_str()) && !value.is_null()
            });
            if let Some((key, _)) = extra {
                return Err(Rejection::new(
                    ErrorCode::UnsupportedField,
                    format!("The field \"{key}\" of a message is not implemented; leave it out."),
                ));
            }
            let role = message.get("role").and_then(Value::as_str);
            let role = role.ok_or_else(|| invalid("messages", form))?.to_owned();
            let content = message.get("content").ok_or_else(|| invalid("messages", form))?;
            Ok(Turn { role, content: read_content(content)? })
        })
        .collect()
}

/// A text, or a list of parts that are all texts.
fn read_content(value: &Value) -> Result<String, Rejection> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let wanted = "a text or a list of parts {\"type\": \"text\", \"text\": ...}";
    let parts = value.as_array().ok_or_else(|| invalid("content", wanted))?;
    parts
        .iter()
        .map(|part| match part["type"].as_str() {
            Some("text") => part["text"].as_str().ok_or_else(|| invalid("content", wanted)),
            Some(other) => Err(Rejection::new(
                ErrorCode::UnsupportedField,
                format!("Message parts of type \"{other}\" are not implemented; only text is."),
            )),
            None => Err(invalid("content", wanted)),
        })
        .collect()
}
