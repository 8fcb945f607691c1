//! Bodies of `/v1/responses`, converted to the fields of a chat completion.

use serde_json::{Map, Value, json};

use super::input::{convert_items, read_items};
use super::settings::ResponseSettings;
use super::tools::{convert_tool_choice, convert_tools};
use crate::body::known_fields::reject_unknown;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::values::{
    JsonFields, get_non_null, invalid_value, missing_field, read_count, read_flag,
};
use crate::chat_extensions::is_chat_extension;
use crate::chat_messages::ChatMessages;
use crate::input_line::{ErrorCode, Rejection};

/// Names of fields in chat completions and here, for the messages of rejections.
pub const RENAMED_FIELDS: [(&str, &str); 4] = [
    ("max_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
];

/// Fields that are read separately, or have no effect here and are repeated in the response.
const READ_FIELDS: [&str; 23] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "include",
    "metadata",
    "truncation",
    "store",
    "previous_response_id",
    "max_output_tokens",
    "max_tool_calls",
    "top_logprobs",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "service_tier",
    "background",
    "context_management",
];

/// Fields that chat completions have too.
const SHARED_FIELDS: [&str; 6] =
    ["stream", "stream_options", "temperature", "top_p", "parallel_tool_calls", "stop"];

/// Values of `include`. Those after the first two add results of tools that are not supported.
const INCLUDABLE: [&str; 8] = [
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

/// Inputs of the conversion in addition to the body.
#[derive(Debug)]
pub struct ConversationContext {
    /// Items of the conversation before the body's input.
    pub previous: Vec<Value>,
    /// The server stores responses unless a request sets `store` to false.
    pub can_store: bool,
}

/// Converts a body to the fields of a chat completion.
///
/// # Errors
/// Returns a rejection that names the first field that is unknown, unsupported or malformed.
pub fn into_chat_fields(
    mut fields: JsonFields,
    context: ConversationContext,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<(JsonFields, ResponseSettings), Rejection> {
    fields.retain(|_, value| !value.is_null());
    check_unsupported(&fields, unknown_fields)?;
    let mut settings = ResponseSettings::default();
    let wants_store = !fields.contains_key("store") || read_flag(&fields, "store")?;
    settings.is_stored = wants_store && context.can_store;
    settings.is_background = read_background(&fields, &settings, unknown_fields)?;
    let mut chat = Map::new();
    read_text(&fields, unknown_fields, &mut chat)?;
    read_reasoning(&fields, unknown_fields, &mut chat)?;
    read_tools(&fields, unknown_fields, &mut chat)?;
    read_include(&fields, &mut settings, &mut chat)?;
    settings.truncates = match fields.get("truncation").map(Value::as_str) {
        None | Some(Some("disabled")) => false,
        Some(Some("auto")) => true,
        Some(_) => return Err(invalid_value("truncation", "'auto' or 'disabled'")),
    };
    if let Some(max_tokens) = fields.get("max_output_tokens") {
        chat.insert("max_tokens".to_owned(), max_tokens.clone());
    }
    settings.echo = echo(&fields, &settings)?;
    let items = read_items(fields.shift_remove("input").ok_or_else(|| missing_field("input"))?)?;
    let items: Vec<Value> = context.previous.into_iter().chain(items).collect();
    if items.is_empty() {
        let message = "Invalid value for 'input': must not be empty.";
        return Err(Rejection::new(ErrorCode::EmptyPrompt, message).with_param("input"));
    }
    if settings.is_stored {
        settings.items = serde_json::to_string(&items).unwrap_or_default();
    }
    let mut messages = ChatMessages::default();
    match fields.shift_remove("instructions") {
        Some(Value::String(text)) => messages.push_text("system", text),
        None => {}
        Some(_) => return Err(invalid_value("instructions", "a string")),
    }
    convert_items(items, &mut messages)?;
    chat.insert("messages".to_owned(), messages.into_value());
    for (name, value) in fields {
        let is_shared = SHARED_FIELDS.contains(&&*name) || is_chat_extension(&name);
        if is_shared && !chat.contains_key(&name) {
            chat.insert(name, value);
        }
    }
    Ok((chat, settings))
}

/// Reads `background`, which is supported for responses that are stored and not streamed.
fn read_background(
    fields: &JsonFields,
    settings: &ResponseSettings,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<bool, Rejection> {
    if !read_flag(fields, "background")? {
        return Ok(false);
    }
    let message = if !settings.is_stored {
        "Unsupported value: 'background' requires that the response is stored. Set 'store' to \
         true, and start the server with --store-responses."
    } else if read_flag(fields, "stream")? {
        "Unsupported value: 'background' cannot be combined with 'stream'. Poll the response with \
         GET /v1/responses/{id}."
    } else {
        return Ok(true);
    };
    let rejection = Rejection::new(ErrorCode::UnsupportedField, message).with_param("background");
    unknown_fields.ignore_or_reject("background", rejection)?;
    Ok(false)
}

/// Checks the names of all fields, and the values of those that are supported only without effect.
fn check_unsupported(
    fields: &JsonFields,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<(), Rejection> {
    if let Some(name) =
        ["conversation", "prompt"].into_iter().find(|name| fields.contains_key(*name))
    {
        let message = if name == "conversation" {
            "Unsupported parameter: 'conversation' is not supported with this server. Use \
             'previous_response_id' to continue a stored response."
        } else {
            "Unsupported parameter: 'prompt' is not supported with this server, which stores no \
             prompt templates. Use 'instructions' and 'input'."
        };
        let rejection = Rejection::new(ErrorCode::UnsupportedField, message).with_param(name);
        unknown_fields.ignore_or_reject(name, rejection)?;
    }
    for (name, value) in fields {
        let is_known = READ_FIELDS.contains(&&**name)
            || SHARED_FIELDS.contains(&&**name)
            || is_chat_extension(name);
        unknown_fields.check_known(name, is_known)?;
        let is_neutral = match name.as_str() {
            "context_management" => value.as_array().is_some_and(Vec::is_empty),
            _ => true,
        };
        if !is_neutral {
            let message = format!(
                "Unsupported value: '{name}' is only supported with its default value. Remove it."
            );
            let rejection = Rejection::new(ErrorCode::UnsupportedField, message).with_param(name);
            unknown_fields.ignore_or_reject(name, rejection)?;
        }
    }
    Ok(())
}

/// Reads `text`: `format` and `verbosity`.
fn read_text(
    fields: &JsonFields,
    unknown_fields: &UnknownFieldPolicy,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let Some(text) = fields.get("text") else { return Ok(()) };
    let text = text.as_object().ok_or_else(|| invalid_value("text", "an object with 'format'"))?;
    reject_unknown(text, "text", &["format", "verbosity"], unknown_fields)?;
    if let Some(verbosity) = get_non_null(text, "verbosity") {
        chat.insert("verbosity".to_owned(), verbosity.clone());
    }
    let Some(format) = get_non_null(text, "format") else { return Ok(()) };
    let wanted = "{\"type\": \"text\"}, {\"type\": \"json_object\"} or {\"type\": \"json_schema\", \
                  \"name\": ..., \"schema\": {...}}";
    let refused = || invalid_value("text.format", wanted);
    let mut format = format.as_object().ok_or_else(refused)?.clone();
    let response_format = match format.shift_remove("type") {
        Some(Value::String(kind)) if kind == "json_schema" => {
            format.get("schema").filter(|schema| schema.is_object()).ok_or_else(refused)?;
            json!({"type": kind, "json_schema": format})
        }
        Some(Value::String(kind)) if kind == "text" || kind == "json_object" => {
            json!({"type": kind})
        }
        _ => return Err(refused()),
    };
    chat.insert("response_format".to_owned(), response_format);
    Ok(())
}

/// Reads `reasoning`. Without effort, the variable by which templates switch reasoning off is set.
fn read_reasoning(
    fields: &JsonFields,
    unknown_fields: &UnknownFieldPolicy,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let Some(reasoning) = fields.get("reasoning") else { return Ok(()) };
    let wanted = "an object with 'effort' and 'summary'";
    let reasoning = reasoning.as_object().ok_or_else(|| invalid_value("reasoning", wanted))?;
    let known = ["effort", "summary", "generate_summary"];
    reject_unknown(reasoning, "reasoning", &known, unknown_fields)?;
    let Some(effort) = get_non_null(reasoning, "effort") else { return Ok(()) };
    let effort = match effort.as_str() {
        Some("none") => {
            let mut variables = json!({"enable_thinking": false, "thinking": false});
            if let (Some(variables), Some(given)) = (
                variables.as_object_mut(),
                fields.get("chat_template_kwargs").and_then(Value::as_object),
            ) {
                variables.extend(given.clone());
            }
            chat.insert("chat_template_kwargs".to_owned(), variables);
            return Ok(());
        }
        // Templates know no lower and no higher one.
        Some("minimal") => "low",
        Some("xhigh" | "max") => "high",
        Some(effort @ ("low" | "medium" | "high")) => effort,
        _ => {
            let wanted = "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'";
            return Err(invalid_value("reasoning.effort", wanted));
        }
    };
    chat.insert("reasoning_effort".to_owned(), effort.into());
    Ok(())
}

fn read_tools(
    fields: &JsonFields,
    unknown_fields: &UnknownFieldPolicy,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let tools = fields.get("tools").map(|tools| convert_tools(tools, unknown_fields));
    let mut tools = tools.transpose()?.unwrap_or_default();
    if let Some(choice) = fields.get("tool_choice") {
        chat.insert("tool_choice".to_owned(), convert_tool_choice(choice, &mut tools)?);
    }
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), tools.into());
    }
    Ok(())
}

/// Reads `include` and `top_logprobs`.
fn read_include(
    fields: &JsonFields,
    settings: &mut ResponseSettings,
    chat: &mut JsonFields,
) -> Result<(), Rejection> {
    let wanted = format!("an array of some of '{}'", INCLUDABLE.join("', '"));
    let refused = || invalid_value("include", &wanted);
    let included = fields.get("include").map(|included| included.as_array().ok_or_else(refused));
    let included = included.transpose()?.map_or(&[][..], Vec::as_slice);
    let is_known = |value: &Value| value.as_str().is_some_and(|name| INCLUDABLE.contains(&name));
    if !included.iter().all(is_known) {
        return Err(refused());
    }
    let includes = |name: &str| included.iter().any(|value| value == name);
    settings.returns_encrypted_reasoning = includes(INCLUDABLE[0]);
    let likely = read_count(fields, "top_logprobs", 0..=20)?;
    if includes(INCLUDABLE[1]) || likely.is_some_and(|likely| likely > 0) {
        chat.insert("logprobs".to_owned(), true.into());
        chat.insert("top_logprobs".to_owned(), likely.unwrap_or(0).into());
    }
    Ok(())
}

/// Returns the fields of a request that its response repeats, with their defaults.
fn echo(fields: &JsonFields, settings: &ResponseSettings) -> Result<JsonFields, Rejection> {
    check_metadata(fields)?;
    let mut echo = Map::new();
    let defaults = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("safety_identifier", Value::Null),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
    ];
    for (name, default) in defaults {
        echo.insert(name.to_owned(), fields.get(name).cloned().unwrap_or(default));
    }
    let with_defaults = |name: &str, defaults: Value| {
        let mut value = defaults;
        if let (Some(value), Some(given)) =
            (value.as_object_mut(), fields.get(name).and_then(Value::as_object))
        {
            value.extend(given.clone());
        }
        value
    };
    let text = json!({"format": {"type": "text"}, "verbosity": "medium"});
    echo.insert("text".to_owned(), with_defaults("text", text));
    let reasoning = json!({"effort": null, "summary": null});
    echo.insert("reasoning".to_owned(), with_defaults("reasoning", reasoning));
    echo.insert("service_tier".to_owned(), "default".into());
    echo.insert("background".to_owned(), settings.is_background.into());
    echo.insert("store".to_owned(), settings.is_stored.into());
    Ok(echo)
}

/// Checks that `metadata` is within OpenAI's limits.
fn check_metadata(fields: &JsonFields) -> Result<(), Rejection> {
    let Some(metadata) = fields.get("metadata") else { return Ok(()) };
    let is_pair = |(name, value): (&String, &Value)| {
        let is_short = |text: &str, max: usize| text.chars().count() <= max;
        is_short(name, 64) && value.as_str().is_some_and(|text| is_short(text, 512))
    };
    match metadata.as_object() {
        Some(pairs) if pairs.len() <= 16 && pairs.iter().all(is_pair) => Ok(()),
        _ => {
            let wanted = "an object of at most 16 strings of at most 512 characters";
            Err(invalid_value("metadata", wanted))
        }
    }
}
