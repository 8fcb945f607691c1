//! Values of fields, and rejections of invalid ones.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::input_line::{ErrorCode, Rejection};

/// Fields of a body, by name.
pub type JsonFields = Map<String, Value>;

/// Returns the value of a field, or `None` if it is missing or null.
pub(crate) fn get_non_null<'a>(fields: &'a JsonFields, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

pub(crate) fn missing_field(field: &str) -> Rejection {
    let message = format!("Missing required parameter: '{field}'.");
    Rejection::new(ErrorCode::MissingField, message).with_param(field)
}

pub(crate) fn invalid_value(field: &str, wanted: &str) -> Rejection {
    let message = format!("Invalid value for '{field}': must be {wanted}.");
    Rejection::new(ErrorCode::InvalidValue, message).with_param(field)
}

/// Describes an invalid value: a number or a boolean as it is, any other value by its type.
pub(crate) fn describe_value(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

pub(crate) fn reject_misplaced(
    fields: &JsonFields,
    name: &str,
    url: &str,
) -> Result<(), Rejection> {
    match get_non_null(fields, name) {
        None => Ok(()),
        Some(_) => {
            let message =
                format!("Unsupported parameter: '{name}' is not supported in {url}. Remove it.");
            Err(Rejection::new(ErrorCode::UnsupportedField, message).with_param(name))
        }
    }
}

/// Reads a number for which `accept` returns true; `range` describes the valid numbers in words.
pub(crate) fn read_number(
    fields: &JsonFields,
    name: &str,
    range: &str,
    accept: impl Fn(f64) -> bool,
) -> Result<Option<f32>, Rejection> {
    let Some(value) = get_non_null(fields, name) else { return Ok(None) };
    let number = value.as_f64().filter(|number| accept(*number));
    let wanted = || format!("a number {range}, got {}", describe_value(value));
    let number = number.ok_or_else(|| invalid_value(name, &wanted()))?;
    // A tiny top_p must not become 0, which would leave no token to sample.
    let narrow = number as f32;
    Ok(Some(if number > 0.0 { narrow.max(f32::MIN_POSITIVE) } else { narrow }))
}

pub(crate) fn read_count(
    fields: &JsonFields,
    name: &str,
    range: RangeInclusive<usize>,
) -> Result<Option<usize>, Rejection> {
    let Some(value) = get_non_null(fields, name) else { return Ok(None) };
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    let (start, end) = (range.start(), range.end());
    let wanted = || format!("an integer between {start} and {end}, got {}", describe_value(value));
    let number = number.filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| invalid_value(name, &wanted()))
}

/// Reads a boolean, which is `false` if it is not given.
pub(crate) fn read_flag(fields: &JsonFields, name: &str) -> Result<bool, Rejection> {
    let Some(value) = get_non_null(fields, name) else { return Ok(false) };
    let wanted = || format!("a boolean, got {}", describe_value(value));
    value.as_bool().ok_or_else(|| invalid_value(name, &wanted()))
}
