//! Parsing of untrusted JSON objects with bounded memory: a body of a few megabytes must not expand
//! to gigabytes of values.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::input_line::{ErrorCode, Rejection};
use super::json::invalid_json;

/// Bounds on a JSON object.
#[derive(Debug, Clone, Copy)]
pub struct JsonBounds {
    /// Maximum number of values; a value in a nested object counts twice, because of its name. Each
    /// value takes at most about 100 bytes in addition to its text.
    pub max_values: usize,
    /// Returns true for fields of the outermost object that are skipped.
    pub is_skipped: fn(&str) -> bool,
}

/// Parses a JSON object within `bounds`. `what` names the text and `example` is a valid object;
/// both are for the messages of rejections.
///
/// # Errors
/// Returns a rejection if the text is not JSON, nests too deeply, has too many values, or is not an
/// object.
pub fn parse_bounded_object(
    text: &str,
    what: &str,
    example: &str,
    bounds: JsonBounds,
) -> Result<Map<String, Value>, Rejection> {
    let remaining = Cell::new(bounds.max_values.saturating_add(1));
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let outer = OuterVisitor { remaining: &remaining, is_skipped: bounds.is_skipped };
    let read = deserializer.deserialize_any(outer);
    let read = read.and_then(|fields| deserializer.end().map(|()| fields));
    match read {
        Ok(Some(fields)) => Ok(fields),
        Ok(None) => Err(Rejection::new(
            ErrorCode::InvalidJson,
            format!("The {what} must be a JSON object such as {example}."),
        )),
        Err(_) if remaining.get() == 0 => Err(Rejection::new(
            ErrorCode::InvalidValue,
            format!(
                "The {what} has more than {} JSON values. Send fewer in one request.",
                bounds.max_values
            ),
        )),
        Err(error) => Err(invalid_json(&error, what)),
    }
}

/// Visitor that parses the outermost object, and returns `None` for any other value.
struct OuterVisitor<'a> {
    remaining: &'a Cell<usize>,
    is_skipped: fn(&str) -> bool,
}

impl<'de> Visitor<'de> for OuterVisitor<'_> {
    type Value = Option<Map<String, Value>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            if (self.is_skipped)(&name) {
                object.next_value::<IgnoredAny>()?;
            } else {
                let value = object.next_value_seed(BoundedVisitor { remaining: self.remaining })?;
                fields.insert(name, value);
            }
        }
        Ok(Some(fields))
    }
}

/// Seed and visitor that parse a value and count the values in it.
#[derive(Clone, Copy)]
struct BoundedVisitor<'a> {
    remaining: &'a Cell<usize>,
}

impl BoundedVisitor<'_> {
    fn count<E: Error>(self, values: usize) -> Result<(), E> {
        let remaining = self.remaining.get().saturating_sub(values);
        self.remaining.set(remaining);
        if remaining == 0 { Err(E::custom("too many values")) } else { Ok(()) }
    }
}

impl<'de> DeserializeSeed<'de> for BoundedVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count(1)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = object.next_key::<String>()? {
            self.count(1)?;
            let value = object.next_value_seed(self)?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: JsonBounds =
        JsonBounds { max_values: 1000, is_skipped: |name| name == "metadata" };

    fn parse(text: &str) -> Result<Value, Rejection> {
        parse_bounded_object(text, "body", "{}", BOUNDS).map(Value::Object)
    }

    #[test]
    fn objects_are_read_as_ever() {
        let texts = [
            "{}",
            r#" {"a": [1, -2, 3.5, 1e400, true, null, "x\u00e9\n"], "b": {"c": {}, "d": []}} "#,
            r#"{"a": 1, "b": 2, "a": 18446744073709551615}"#,
            r#"{"a": 123456789012345678901234567890, "b": -9223372036854775808}"#,
        ];
        for text in texts {
            let expected: Result<Value, _> = serde_json::from_str(text);
            assert_eq!(parse(text).ok(), expected.ok(), "{text}");
        }
        for wrong in ["", "[1]", "1", "\"a\"", "null", "{\"a\": 1", "{} x", "{\"a\": [1,]}"] {
            assert_eq!(parse(wrong).map_err(|error| error.code), Err(ErrorCode::InvalidJson));
        }
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(parse(&deep).map_err(|error| error.code), Err(ErrorCode::InvalidJson));
    }

    #[test]
    fn values_are_counted_and_skipped_fields_are_not() {
        let list = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert!(parse(&format!("{{\"a\": {}}}", list(990))).is_ok());
        let refused = parse(&format!("{{\"a\": {}}}", list(1001))).expect_err("too many");
        assert_eq!(refused.code, ErrorCode::InvalidValue);
        assert!(refused.message.contains("more than 1000 JSON values"), "{}", refused.message);
        let fields = parse(&format!("{{\"metadata\": {}, \"a\": 1}}", list(100_000)));
        assert_eq!(fields.expect("it is passed over"), serde_json::json!({"a": 1}));
    }
}
