//! Prompts of a request, in all formats of the two endpoints.

use engine_api::codec::{ChatTurn, Conversation};
use serde_json::Value;

use super::origin::BodyOrigin;
use super::rules::BodyRules;
use super::tools::normalize_tool_calls;
use super::values::{
    JsonFields, get_non_null, invalid_value, missing_field, read_flag, reject_misplaced,
};
use crate::input_line::{Endpoint, ErrorCode, Rejection};

/// A prompt before tokenisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawPrompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Conversation),
}

/// Reads the prompts of a request to `endpoint`.
///
/// # Errors
/// Returns a rejection of a field that is missing, malformed or belongs to the other endpoint.
pub(super) fn read(
    fields: &JsonFields,
    endpoint: Endpoint,
    rules: &BodyRules<'_>,
) -> Result<Vec<RawPrompt>, Rejection> {
    match endpoint {
        Endpoint::Completions => {
            read_continues(fields, &[])?;
            for name in ["messages", TEMPLATE_KWARGS, REASONING_EFFORT] {
                reject_misplaced(fields, name, "/v1/completions")?;
            }
            read_prompt(get_non_null(fields, "prompt").ok_or_else(|| missing_field("prompt"))?)
        }
        Endpoint::ChatCompletions => {
            reject_misplaced(fields, "prompt", "/v1/chat/completions")?;
            let messages =
                get_non_null(fields, "messages").ok_or_else(|| missing_field("messages"))?;
            let (turns, variables) = (read_messages(messages, rules)?, read_variables(fields)?);
            let continues_last_turn = read_continues(fields, &turns)?;
            let chat = Conversation { variables, continues_last_turn, ..Conversation::new(turns) };
            Ok(vec![RawPrompt::Chat(chat)])
        }
    }
}

/// Reads the prompts that a client asks to have tokenised. Unlike prompts to be answered, they may
/// have `add_generation_prompt: false`, and then end without a generation prompt.
///
/// # Errors
/// See [`read`].
pub(super) fn read_to_tokenize(
    fields: &mut JsonFields,
    endpoint: Endpoint,
    rules: &BodyRules<'_>,
) -> Result<Vec<RawPrompt>, Rejection> {
    let adds_prompt = get_non_null(fields, ADD_GENERATION_PROMPT).is_none()
        || read_flag(fields, ADD_GENERATION_PROMPT)?;
    let omits_prompt = !adds_prompt && !read_flag(fields, CONTINUE_FINAL_MESSAGE)?;
    if omits_prompt {
        fields.shift_remove(ADD_GENERATION_PROMPT);
    }
    let mut prompts = read(fields, endpoint, rules)?;
    for prompt in &mut prompts {
        if let RawPrompt::Chat(chat) = prompt {
            chat.omits_generation_prompt = omits_prompt;
        }
    }
    Ok(prompts)
}

const CONTINUE_FINAL_MESSAGE: &str = "continue_final_message";
/// If true, which is the default, the template begins a new answer, unless the answer continues the
/// last message.
const ADD_GENERATION_PROMPT: &str = "add_generation_prompt";
const TEMPLATE_KWARGS: &str = "chat_template_kwargs";
const REASONING_EFFORT: &str = "reasoning_effort";
/// Variables that every template receives and that requests cannot set.
const RESERVED_VARIABLES: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Returns true if the answer continues the last message.
fn read_continues(fields: &JsonFields, turns: &[ChatTurn]) -> Result<bool, Rejection> {
    let continues = read_flag(fields, CONTINUE_FINAL_MESSAGE)?;
    let adds_prompt = get_non_null(fields, ADD_GENERATION_PROMPT).is_none()
        || read_flag(fields, ADD_GENERATION_PROMPT)?;
    if !adds_prompt && !continues {
        let expected = "true or absent unless 'continue_final_message' is true";
        return Err(invalid_value(ADD_GENERATION_PROMPT, expected));
    }
    let calls = |turn: &ChatTurn| turn.extra_fields.iter().any(|(name, _)| name == "tool_calls");
    let is_text = |turn: &ChatTurn| turn.role == "assistant" && !calls(turn);
    if continues && !turns.last().is_some_and(is_text) {
        let expected = "false unless the last message is an assistant message without tool calls";
        return Err(invalid_value(CONTINUE_FINAL_MESSAGE, expected));
    }
    Ok(continues)
}

/// Reads additional variables of the chat template, as names and JSON texts.
fn read_variables(fields: &JsonFields) -> Result<Vec<(String, String)>, Rejection> {
    let kwargs = get_non_null(fields, TEMPLATE_KWARGS).map(|kwargs| {
        template_variables(kwargs).map_err(|expected| invalid_value(TEMPLATE_KWARGS, &expected))
    });
    let mut variables = kwargs.transpose()?.unwrap_or_default();
    if let Some(effort) = get_non_null(fields, REASONING_EFFORT) {
        let expected = "a string such as 'low', 'medium' or 'high'";
        let effort = effort.as_str().ok_or_else(|| invalid_value(REASONING_EFFORT, expected))?;
        if variables.iter().all(|(name, _)| name != REASONING_EFFORT) {
            variables.push((REASONING_EFFORT.to_owned(), Value::from(effort).to_string()));
        }
    }
    Ok(variables)
}

/// Returns the names and JSON texts of an object of variables.
///
/// # Errors
/// Returns a description of the expected value.
pub fn template_variables(value: &Value) -> Result<Vec<(String, String)>, String> {
    let expected = || "an object of variables, such as {\"enable_thinking\": false}".to_owned();
    let variables = value.as_object().ok_or_else(expected)?;
    if let Some(name) = RESERVED_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        return Err(format!("an object without `{name}`, which every template receives"));
    }
    Ok(variables.iter().map(|(name, value)| (name.clone(), value.to_string())).collect())
}

const PROMPT_FORMATS: &str = "a string, an array of strings, an array of token ids or an array of \
                            token id arrays";

fn read_prompt(value: &Value) -> Result<Vec<RawPrompt>, Rejection> {
    match value {
        Value::String(text) => Ok(vec![RawPrompt::Text(text.clone())]),
        Value::Array(list) => match list.first() {
            None => Ok(vec![RawPrompt::Tokens(Vec::new())]),
            Some(Value::Number(_)) => {
                Ok(vec![RawPrompt::Tokens(read_tokens(list, "prompt", PROMPT_FORMATS)?)])
            }
            Some(Value::String(_)) => list
                .iter()
                .map(|entry| {
                    let text =
                        entry.as_str().ok_or_else(|| invalid_value("prompt", PROMPT_FORMATS))?;
                    Ok(RawPrompt::Text(text.to_owned()))
                })
                .collect(),
            Some(_) => list
                .iter()
                .map(|entry| {
                    let ids =
                        entry.as_array().ok_or_else(|| invalid_value("prompt", PROMPT_FORMATS))?;
                    Ok(RawPrompt::Tokens(read_tokens(ids, "prompt", PROMPT_FORMATS)?))
                })
                .collect(),
        },
        _ => Err(invalid_value("prompt", PROMPT_FORMATS)),
    }
}

/// Reads the token ids of a `field`, of which `formats` describes the valid values.
///
/// # Errors
/// Returns a rejection of the first that is no token id.
pub(super) fn read_tokens(
    list: &[Value],
    field: &str,
    formats: &str,
) -> Result<Vec<u32>, Rejection> {
    list.iter()
        .map(|entry| match entry.as_u64() {
            // An id that exceeds u32 is certainly outside the vocabulary, which is checked later.
            Some(id) => Ok(u32::try_from(id).unwrap_or(u32::MAX)),
            None if entry.is_i64() => Err(Rejection::new(
                ErrorCode::TokenOutOfVocabulary,
                format!("Token id {entry} is out of vocabulary: must not be negative."),
            )),
            None => Err(invalid_value(field, formats)),
        })
        .collect()
}

/// OpenAI's roles; `developer` is the name of `system` for its newer models.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];
/// Fields of a message that are passed to templates unchanged.
const PASSED_THROUGH: [&str; 3] = ["name", "tool_call_id", "reasoning_content"];

fn read_messages(value: &Value, rules: &BodyRules<'_>) -> Result<Vec<ChatTurn>, Rejection> {
    let expected = "an array of objects with 'role' and 'content'";
    let list = value.as_array().ok_or_else(|| invalid_value("messages", expected))?;
    if list.is_empty() {
        let message = "Invalid value for 'messages': must not be empty.";
        return Err(Rejection::new(ErrorCode::EmptyPrompt, message).with_param("messages"));
    }
    list.iter()
        .map(|entry| {
            let message = entry.as_object().ok_or_else(|| invalid_value("messages", expected))?;
            let role = message.get("role").and_then(Value::as_str);
            let role = role.ok_or_else(|| invalid_value("messages", expected))?;
            if !ROLES.contains(&role) {
                let roles = format!("one of '{}', got '{role}'", ROLES.join("', '"));
                return Err(invalid_value("role", &roles));
            }
            Ok(ChatTurn {
                role: role.to_owned(),
                content: message_content(message)?,
                extra_fields: extra_fields(message, rules)?,
            })
        })
        .collect()
}

/// Returns the text of a message, which is empty if the assistant only called tools.
fn message_content(message: &JsonFields) -> Result<String, Rejection> {
    let calls =
        ["tool_calls", "function_call"].iter().any(|name| get_non_null(message, name).is_some());
    match get_non_null(message, "content") {
        Some(content) => read_content(content),
        None if calls => Ok(String::new()),
        // Clients send back assistant messages without content: the refusal, if there is one, is
        // the text.
        None if message.get("role").is_some_and(|role| role == "assistant") => {
            let refusal = get_non_null(message, "refusal").map(Value::as_str).unwrap_or_default();
            Ok(refusal.unwrap_or_default().to_owned())
        }
        None => Err(invalid_value("messages", "an array of objects with 'role' and 'content'")),
    }
}

/// Returns the other fields of a message that templates read, as names and JSON texts.
fn extra_fields(
    message: &JsonFields,
    rules: &BodyRules<'_>,
) -> Result<Vec<(String, String)>, Rejection> {
    let mut more = Vec::new();
    let has_refusal = message.get("refusal").is_some_and(|refusal| !refusal.is_null());
    for (name, value) in message {
        match name.as_str() {
            // Not every template treats a null content as an empty one. A refusal replaces the
            // content.
            "content" if value.is_null() && !has_refusal => {
                more.push((name.clone(), value.to_string()));
            }
            // Read separately, or not read by any template.
            "role" | "content" | "refusal" | "annotations" | "audio" => {}
            _ if value.is_null() => {}
            "tool_calls" => {
                let calls = normalize_tool_calls(value)?;
                // Some clients send an empty list if there are no calls.
                if calls.as_array().is_some_and(|calls| !calls.is_empty()) {
                    more.push((name.clone(), calls.to_string()));
                }
            }
            // The name that newer servers use.
            "reasoning" => more.push(("reasoning_content".to_owned(), value.to_string())),
            name if PASSED_THROUGH.contains(&name) => {
                more.push((name.to_owned(), value.to_string()))
            }
            // Clients send back the fields that servers add to their answers.
            _ if rules.origin == BodyOrigin::Client => {}
            name => rules.unknown_fields.ignore_or_reject(
                name,
                Rejection::new(
                    ErrorCode::UnsupportedField,
                    format!(
                        "Unsupported parameter: '{name}' is not supported in a message. Remove it."
                    ),
                )
                .with_param(name),
            )?,
        }
    }
    Ok(more)
}

/// Reads a content that is a text or a list of parts, which are all texts or refusals and are
/// concatenated.
fn read_content(value: &Value) -> Result<String, Rejection> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let wanted = "a string or an array of parts {\"type\": \"text\", \"text\": ...} or \
                  {\"type\": \"refusal\", \"refusal\": ...}";
    let parts = value.as_array().ok_or_else(|| invalid_value("content", wanted))?;
    parts
        .iter()
        .map(|part| match part["type"].as_str() {
            Some(kind @ ("text" | "refusal")) => {
                part[kind].as_str().ok_or_else(|| invalid_value("content", wanted))
            }
            Some(other) => Err(Rejection::new(
                ErrorCode::UnsupportedField,
                format!(
                    "Unsupported content part of type '{other}': only 'text' and 'refusal' are \
                     supported."
                ),
            )),
            None => Err(invalid_value("content", wanted)),
        })
        .collect()
}
