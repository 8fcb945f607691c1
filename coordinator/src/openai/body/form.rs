//! The form that a request asks its answers to have: OpenAI's `response_format`, and vLLM's
//! `structured_outputs`.

use grammar::{Grammar, Whitespace};
use serde_json::{Value, json};

use super::values::{Fields, flag, given, invalid};
use crate::openai::item::{ErrorCode, Rejection};

/// Reads both fields, of which one may ask for a form. An answer that must have a form ends with
/// it.
///
/// # Errors
/// A rejection that says what was expected.
pub(super) fn read(fields: &Fields) -> Result<Option<Grammar>, Rejection> {
    let response = given(fields, "response_format").map(response).transpose()?.flatten();
    let structured = given(fields, "structured_outputs").map(structured).transpose()?;
    let (structured, whitespace) = structured.unwrap_or((None, None));
    let form = match (response, structured) {
        (Some(_), Some(_)) => {
            return Err(Rejection::new(
                ErrorCode::InvalidValue,
                "The fields \"response_format\" and \"structured_outputs\" both ask for a form; \
                 give one of them.",
            ));
        }
        (response, structured) => response.or(structured),
    };
    let grammar = match (form, whitespace) {
        (Some(Grammar::JsonSchema(schema, _)), Some(whitespace)) => {
            Some(Grammar::JsonSchema(schema, whitespace))
        }
        (_, Some(_)) => {
            return Err(Rejection::new(
                ErrorCode::InvalidValue,
                "Whitespace is only said of JSON: give \"structured_outputs\" a \"json\" too, or \
                 a \"response_format\" beside it.",
            ));
        }
        (form, None) => form,
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

const STRUCTURED: &str = "an object with one of \"json\", \"json_object\", \"regex\" and \
     \"choice\": a JSON Schema, true, a regular expression, or a list of texts; beside JSON \
     \"whitespace_pattern\" or \"disable_any_whitespace\"";

/// The form, and what may stand between the parts of JSON; each if it is given.
fn structured(value: &Value) -> Result<(Option<Grammar>, Option<Whitespace>), Rejection> {
    let refused = || invalid("structured_outputs", STRUCTURED);
    let (mut grammar, mut whitespace) = (None, None);
    for (name, value) in value.as_object().ok_or_else(refused)? {
        let given = match (name.as_str(), value) {
            (_, Value::Null) | ("disable_any_whitespace" | "json_object", Value::Bool(false)) => {
                continue;
            }
            ("disable_any_whitespace", Value::Bool(true)) => Err(Whitespace::Nothing),
            ("whitespace_pattern", Value::String(pattern)) => {
                Err(Whitespace::Pattern(pattern.clone()))
            }
            _ => Ok(form(name, value).ok_or_else(refused)?),
        };
        let is_second = match given {
            Ok(form) => grammar.replace(form).is_some(),
            Err(said) => whitespace.replace(said).is_some(),
        };
        if is_second {
            return Err(refused());
        }
    }
    if grammar.is_none() && whitespace.is_none() {
        return Err(refused());
    }
    Ok((grammar, whitespace))
}

fn form(name: &str, value: &Value) -> Option<Grammar> {
    match (name, value) {
        // As text too, which is how vLLM's own clients send it.
        ("json", Value::String(text)) => {
            serde_json::from_str(text).ok().map(|schema| of_schema(&schema))
        }
        ("json", Value::Object(_) | Value::Bool(_)) => Some(of_schema(value)),
        ("json_object", Value::Bool(true)) => Some(of_schema(&json!({"type": "object"}))),
        ("regex", Value::String(expression)) => Some(Grammar::Regex(expression.clone())),
        ("choice", Value::Array(texts)) if !texts.is_empty() => {
            let text =
                |text: &Value| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            let texts: Option<Vec<String>> = texts.iter().map(text).collect();
            texts.map(Grammar::Choice)
        }
        _ => None,
    }
}

fn of_schema(schema: &Value) -> Grammar {
    Grammar::json_schema(schema.to_string())
}
