//! Structured output of a request: OpenAI's `response_format` and vLLM's `structured_outputs`.

use grammar::{Grammar, Whitespace, close_objects};
use serde_json::{Value, json};

use super::known_fields::reject_unknown;
use super::rules::BodyRules;
use super::unknown_fields::UnknownFieldPolicy;
use super::values::{JsonFields, get_non_null, invalid_value, read_flag};
use crate::input_line::{ErrorCode, Rejection};

/// Reads `response_format` and `structured_outputs`, at most one of which may specify a grammar. An
/// answer with a grammar ends where the grammar ends, so `ignore_eos` is rejected.
///
/// # Errors
/// Returns a rejection that states what was expected.
pub(super) fn read_grammar(
    fields: &JsonFields,
    rules: &BodyRules<'_>,
) -> Result<Option<Grammar>, Rejection> {
    let response = get_non_null(fields, "response_format")
        .map(|value| read_response_format(value, rules.unknown_fields));
    let response = response.transpose()?.flatten();
    let structured =
        get_non_null(fields, "structured_outputs").map(read_structured_outputs).transpose()?;
    let StructuredOutputs { grammar: structured, whitespace, is_closed } =
        structured.unwrap_or_default();
    let constraint = match (response, structured) {
        (Some(_), Some(_)) => {
            return Err(Rejection::new(
                ErrorCode::InvalidValue,
                "Invalid value for 'response_format': it cannot be combined with the format in \
                 'structured_outputs'. Specify only one of them.",
            )
            .with_param("response_format"));
        }
        (response, structured) => response.or(structured),
    };
    let json_only = |what: &str| {
        let message = format!(
            "{what} only to JSON. Add 'json' to 'structured_outputs', or specify \
             'response_format'."
        );
        Err(Rejection::new(ErrorCode::InvalidValue, message))
    };
    let grammar = match (constraint, whitespace) {
        (Some(Grammar::JsonSchema(schema, _)), Some(whitespace)) => {
            Some(Grammar::JsonSchema(schema, whitespace))
        }
        (_, Some(_)) => return json_only("Whitespace options apply"),
        (constraint, None) => constraint,
    };
    let grammar = match grammar {
        Some(Grammar::JsonSchema(schema, whitespace)) if is_closed => {
            Some(Grammar::JsonSchema(with_closed_objects(&schema), whitespace))
        }
        _ if is_closed => {
            return json_only("The option 'disable_additional_properties' applies");
        }
        grammar => grammar,
    };
    if grammar.is_some() && read_flag(fields, "ignore_eos")? {
        return Err(invalid_value("ignore_eos", "false for a request with a response format"));
    }
    Ok(grammar)
}

fn read_response_format(
    value: &Value,
    unknown_fields: &UnknownFieldPolicy,
) -> Result<Option<Grammar>, Rejection> {
    let wanted = "{\"type\": \"text\"}, {\"type\": \"json_object\"} with an optional 'schema', or \
                  {\"type\": \"json_schema\", \"json_schema\": {\"name\": ..., \"schema\": {...}}}";
    let refused = || invalid_value("response_format", wanted);
    let fields = value.as_object().ok_or_else(refused)?;
    let is_schema = |schema: &&Value| schema.is_object() || schema.is_boolean();
    let only = |known: &[&str]| reject_unknown(fields, "response_format", known, unknown_fields);
    match (fields.get("type").and_then(Value::as_str), get_non_null(fields, "json_schema")) {
        (Some("text"), None) => only(&["type"]).map(|()| None),
        // llama.cpp and others accept a schema with this type.
        (Some("json_object"), None) => {
            only(&["type", "schema"])?;
            let any = json!({"type": "object"});
            let schema = get_non_null(fields, "schema").unwrap_or(&any);
            Some(schema)
                .filter(is_schema)
                .map(|schema| Some(closed_grammar(schema)))
                .ok_or_else(refused)
        }
        (Some("json_schema"), Some(Value::Object(named))) => {
            only(&["type", "json_schema"])?;
            let known = ["name", "description", "schema", "strict"];
            self::reject_unknown(named, "json_schema", &known, unknown_fields)?;
            read_flag(named, "strict")?;
            let schema = named.get("schema").filter(is_schema);
            schema.map(|schema| Some(closed_grammar(schema))).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

/// Returns the grammar of a response format. Like the parameters of functions, objects that declare
/// `properties` have no others unless the schema states otherwise, with or without `strict`: strict
/// schemas of OpenAI close all objects, and models keep inventing keys if they may.
fn closed_grammar(schema: &Value) -> Grammar {
    Grammar::json_schema(with_closed_objects(&schema.to_string()))
}

/// Returns the text of a schema whose objects have only the properties that they declare.
fn with_closed_objects(schema: &str) -> String {
    let Ok(mut schema) = serde_json::from_str(schema) else { return schema.to_owned() };
    close_objects(&mut schema);
    schema.to_string()
}

const STRUCTURED_OUTPUTS_FORMAT: &str = "an object with one of 'json' (a JSON Schema), \
     'json_object' (true), 'regex' (a regular expression) and 'choice' (an array of strings); for \
     JSON also 'whitespace_pattern' or 'disable_any_whitespace', and \
     'disable_additional_properties'";

/// Contents of `structured_outputs`, each of which is optional.
#[derive(Default)]
struct StructuredOutputs {
    grammar: Option<Grammar>,
    /// Permitted whitespace between the tokens of JSON.
    whitespace: Option<Whitespace>,
    /// Objects have only the properties that they declare, unless the schema states otherwise.
    is_closed: bool,
}

fn read_structured_outputs(value: &Value) -> Result<StructuredOutputs, Rejection> {
    let refused = || invalid_value("structured_outputs", STRUCTURED_OUTPUTS_FORMAT);
    let (mut grammar, mut whitespace) = (None, None);
    let mut is_closed = false;
    for (name, value) in value.as_object().ok_or_else(refused)? {
        let given = match (name.as_str(), value) {
            (_, Value::Null)
            | (
                "disable_any_whitespace" | "disable_additional_properties" | "json_object",
                Value::Bool(false),
            ) => {
                continue;
            }
            ("disable_additional_properties", Value::Bool(true)) => {
                is_closed = true;
                continue;
            }
            ("disable_any_whitespace", Value::Bool(true)) => Err(Whitespace::Nothing),
            ("whitespace_pattern", Value::String(pattern)) => {
                Err(Whitespace::Pattern(pattern.clone()))
            }
            _ => Ok(parse_constraint(name, value).ok_or_else(refused)?),
        };
        let is_second = match given {
            Ok(form) => grammar.replace(form).is_some(),
            Err(option) => whitespace.replace(option).is_some(),
        };
        if is_second {
            return Err(refused());
        }
    }
    if grammar.is_none() && whitespace.is_none() && !is_closed {
        return Err(refused());
    }
    Ok(StructuredOutputs { grammar, whitespace, is_closed })
}

fn parse_constraint(name: &str, value: &Value) -> Option<Grammar> {
    match (name, value) {
        // vLLM's own clients also send the schema as text.
        ("json", Value::String(text)) => {
            serde_json::from_str(text).ok().map(|schema| grammar_from_schema(&schema))
        }
        ("json", Value::Object(_) | Value::Bool(_)) => Some(grammar_from_schema(value)),
        ("json_object", Value::Bool(true)) => Some(grammar_from_schema(&json!({"type": "object"}))),
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

fn grammar_from_schema(schema: &Value) -> Grammar {
    Grammar::json_schema(schema.to_string())
}
