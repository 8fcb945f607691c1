//! Functions that an answer may call: `tools`, `tool_choice` and `parallel_tool_calls`.

use grammar::{Function, close_objects, is_function_name};
use serde_json::{Map, Value, json};

use super::arguments;
use super::values::{JsonFields, get_non_null, invalid_value, read_flag, reject_misplaced};
use crate::input_line::{Endpoint, ErrorCode, Rejection};

/// Functions of a request, and restrictions on their calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tools {
    /// All tools of the request, as JSON texts for the chat template.
    pub definitions: Vec<String>,
    /// Functions that may be called, at least one.
    pub functions: Vec<Function>,
    /// The answer consists of calls only.
    pub is_required: bool,
    /// The answer may contain several calls.
    pub allows_parallel: bool,
}

const TOOLS_FORMAT: &str = "an array of {\"type\": \"function\", \"function\": {\"name\": ..., \
                    \"description\": ..., \"parameters\": {...}}}";

/// Reads the three fields; returns `None` if no function may be called.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_tools(
    fields: &JsonFields,
    endpoint: Endpoint,
) -> Result<Option<Tools>, Rejection> {
    let tools = get_non_null(fields, "tools").map(|tools| tools.as_array().ok_or_else(not_tools));
    let tools = tools.transpose()?.map_or(&[][..], Vec::as_slice);
    let allows_parallel = get_non_null(fields, "parallel_tool_calls").is_none()
        || read_flag(fields, "parallel_tool_calls")?;
    if !tools.is_empty() && endpoint == Endpoint::Completions {
        reject_misplaced(fields, "tools", "/v1/completions")?;
    }
    let functions = tools.iter().map(read_function).collect::<Result<Vec<_>, _>>()?;
    let definitions = tools.iter().map(Value::to_string).collect();
    let all = Tools { definitions, functions, is_required: false, allows_parallel };
    apply_tool_choice(fields, all)
}

/// Restricts the functions to those that `tool_choice` permits; returns `None` if it permits none.
fn apply_tool_choice(fields: &JsonFields, tools: Tools) -> Result<Option<Tools>, Rejection> {
    let has_tools = !tools.functions.is_empty();
    let wanted = if has_tools {
        "'none', 'auto', 'required' or {\"type\": \"function\", \"function\": {\"name\": \
         ...}}"
    } else {
        "'none' or 'auto' unless 'tools' are specified"
    };
    let refused = || invalid_value("tool_choice", wanted);
    let choice = get_non_null(fields, "tool_choice");
    let Some(choice) = choice.filter(|choice| *choice != "auto") else {
        return Ok(has_tools.then_some(tools));
    };
    if choice == "none" {
        return Ok(None);
    }
    if !has_tools {
        return Err(refused());
    }
    if choice == "required" {
        return Ok(Some(Tools { is_required: true, ..tools }));
    }
    if choice["type"] != "function" {
        return Err(refused());
    }
    let name = choice["function"]["name"].as_str().ok_or_else(refused)?;
    let named = tools.functions.iter().find(|function| function.name == name);
    let named = named.cloned().ok_or_else(|| invalid_value("tool_choice", "one of the 'tools'"))?;
    let functions = vec![named];
    Ok(Some(Tools { functions, is_required: true, allows_parallel: false, ..tools }))
}

fn read_function(tool: &Value) -> Result<Function, Rejection> {
    let function = tool["function"].as_object().filter(|_| tool["type"] == "function");
    let function = function.ok_or_else(not_tools)?;
    let name = function.get("name").and_then(Value::as_str).ok_or_else(not_tools)?;
    if !is_function_name(name) {
        let shown: String = name.chars().take(80).collect();
        let message = format!(
            "Invalid value for 'tools': the function name {} must consist of 1 to 64 letters, \
             digits, underscores, hyphens and dots.",
            json!(shown)
        );
        return Err(Rejection::new(ErrorCode::InvalidValue, message).with_param("tools"));
    }
    let parameters = match function.get("parameters") {
        None | Some(Value::Null) => {
            json!({"type": "object", "properties": {}, "additionalProperties": false})
        }
        Some(Value::Object(schema)) => object_schema(schema).ok_or_else(|| not_object(name))?,
        Some(_) => return Err(not_object(name)),
    };
    Ok(Function { name: name.to_owned(), parameters: parameters.to_string() })
}

/// Returns the schema restricted to objects, or `None` if it is a schema of another type.
fn object_schema(schema: &Map<String, Value>) -> Option<Value> {
    let is_object = match schema.get("type") {
        None => true,
        Some(Value::Array(types)) => types.contains(&json!("object")),
        Some(kind) => kind == "object",
    };
    let mut schema = schema.clone();
    schema.insert("type".to_owned(), json!("object"));
    let mut schema = Value::Object(schema);
    // Models keep inventing keys if additional properties are permitted.
    close_objects(&mut schema);
    is_object.then_some(schema)
}

fn not_tools() -> Rejection {
    invalid_value("tools", TOOLS_FORMAT)
}

fn not_object(name: &str) -> Rejection {
    let message = format!(
        "Invalid value for 'tools': the 'parameters' of function {} must be a JSON Schema of an \
         object.",
        json!(name)
    );
    Rejection::new(ErrorCode::InvalidValue, message).with_param("tools")
}

/// Converts the calls of an earlier answer to the format of templates, where arguments are objects.
/// In OpenAI's format they are texts, which the model may not have completed.
///
/// # Errors
/// Returns a rejection if the value is not a list of calls.
pub(super) fn normalize_tool_calls(value: &Value) -> Result<Value, Rejection> {
    let wanted = "an array of {\"id\": ..., \"type\": \"function\", \"function\": {\"name\": ..., \
                  \"arguments\": ...}} whose arguments are a string or a JSON object";
    let refused = || invalid_value("tool_calls", wanted);
    let mut calls = value.as_array().ok_or_else(refused)?.clone();
    for call in &mut calls {
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let function = function.ok_or_else(refused)?;
        let name = function.shift_remove("name").filter(Value::is_string).ok_or_else(refused)?;
        let arguments = match function.shift_remove("arguments") {
            None | Some(Value::Null) => json!({}),
            Some(Value::String(text)) => arguments::parse_arguments(&text),
            Some(given) if given.is_object() => given,
            Some(_) => return Err(refused()),
        };
        // The order in which models write them; clients send any order.
        function.shift_insert(0, "name".to_owned(), name);
        function.shift_insert(1, "arguments".to_owned(), arguments);
    }
    Ok(Value::Array(calls))
}
