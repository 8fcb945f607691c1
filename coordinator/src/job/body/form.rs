//! The form that a request asks its answers to have: OpenAI's `response_format`, and vLLM's `structured_outputs`.

use grammar::Grammar;
use serde_json::{Value, json};

use super::values::{Fields, flag, given, invalid};
use crate::job::item::{ErrorCode, Rejection};

/// Reads both fields, of which one may be given. An answer that must have a form ends with it.
///
/// # Errors
/// A rejection that says what was expected.
pub(super) fn read(fields: &Fields) -> Result<Option<Grammar>, Rejection> {
    let asked = given(fields, "response_format").map(response).transpose()?.flatten();
    let grammar = match (asked, given(fields, "structured_outputs")) {
        (Some(_), Some(_)) => {
            return Err(Rejection::new(
                ErrorCode::InvalidValue,
                "The fields \"response_format\" and \"structured_outputs\" both ask for a form; give one of them.",
            ));
        }
        (grammar, None) => grammar,
        (None, Some(value)) => Some(structured(value)?),
    };
    if grammar.is_some() && flag(fields, "ignore_eos")? {
        return Err(invalid("ignore_eos", "false where the answer must have a form"));
    }
    Ok(grammar)
}

fn response(value: &Value) -> Result<Option<Grammar>, Rejection> {
    let wanted = "{\"type\": \"text\"}, {\"type\": \"json_object\"} or {\"type\": \"json_schema\", \
                  \"json_schema\": {\"name\": ..., \"schema\": {...}}}";
    let refused = || invalid("response_format", wanted);
    let fields = value.as_object().ok_or_else(refused)?;
    match (fields.get("type").and_then(Value::as_str), fields.get("json_schema")) {
        (Some("text"), None) => Ok(None),
        (Some("json_object"), None) => Ok(Some(of_schema(&json!({"type": "object"})))),
        (Some("json_schema"), Some(Value::Object(named))) => {
            let schema =
                named.get("schema").filter(|schema| schema.is_object() || schema.is_boolean());
            schema.map(|schema| Some(of_schema(schema))).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

fn structured(value: &Value) -> Result<Grammar, Rejection> {
    let wanted = "an object with one of \"json\", \"regex\" and \"choice\": a JSON Schema, a regular \
                  expression, or a list of texts";
    let refused = || invalid("structured_outputs", wanted);
    let fields = value.as_object().into_iter().flatten();
    let fields: Vec<(&String, &Value)> = fields.filter(|(_, value)| !value.is_null()).collect();
    let [(name, value)] = fields[..] else { return Err(refused()) };
    match (name.as_str(), value) {
        // As text too, which is how vLLM's own clients send it.
        ("json", Value::String(text)) => {
            serde_json::from_str(text).map(|schema| of_schema(&schema)).map_err(|_| refused())
        }
        ("json", Value::Object(_) | Value::Bool(_)) => Ok(of_schema(value)),
        ("regex", Value::String(expression)) => Ok(Grammar::Regex(expression.clone())),
        ("choice", Value::Array(texts)) if !texts.is_empty() => {
            let text =
                |text: &Value| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            let texts: Option<Vec<String>> = texts.iter().map(text).collect();
            texts.map(Grammar::Choice).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

fn of_schema(schema: &Value) -> Grammar {
    Grammar::JsonSchema(schema.to_string())
}
