//! Validation of answers against the original schema: checks the keywords that are not enforced
//! during generation, and the others again by an independent implementation.

use schema_validator::{MAX_PATTERN_BYTES, SchemaValidator};
use serde_json::{Map, Value};

use crate::cache::CacheValue;
use crate::effort;
use crate::endless::check_cycles;
use crate::graph::Graph;

/// Maximum number of patterns of one schema.
const MAX_PATTERNS: usize = 64;
/// Approximate size of a validator per byte of the schema.
const SCHEMA_BYTES: usize = 96;
/// Maximum length of an error message, in characters.
const MAX_ERROR_CHARS: usize = 300;

/// Result of validating a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    Valid,
    /// The text is invalid, for this reason.
    Invalid(String),
    /// The text could not be validated, for this reason.
    Unknown(String),
}

/// Validates texts against one schema.
pub(crate) struct Validator {
    schema: Value,
    /// The validator, or the reason for which the schema cannot be used.
    validator: Result<SchemaValidator, String>,
    size_bytes: usize,
}

impl Validator {
    /// Compiles a schema's text. References to other documents are not fetched.
    pub(crate) fn new(text: &str) -> Validator {
        let mut schema: Value = serde_json::from_str(text).unwrap_or(Value::Bool(true));
        let patterns = prepare(&mut schema);
        let size_bytes = SCHEMA_BYTES * text.len() + MAX_PATTERN_BYTES * patterns.min(MAX_PATTERNS);
        let validator = match check_cycles(&Graph::new(&schema)) {
            Ok(()) if patterns > MAX_PATTERNS => {
                Err(format!("it has more than {MAX_PATTERNS} patterns"))
            }
            // Formats are annotations there; the parser enforces them by its own expressions.
            Ok(()) => SchemaValidator::new(&schema).map_err(|error| shorten_error(&error)),
            Err(error) => Err(error.to_string()),
        };
        Validator { schema, validator, size_bytes }
    }

    /// Validates a text.
    pub(crate) fn check(&self, text: &[u8]) -> Validation {
        let validator = match &self.validator {
            Ok(validator) => validator,
            Err(error) => return Validation::Unknown(error.clone()),
        };
        let value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => return Validation::Unknown(error.to_string()),
        };
        if !effort::is_bounded(&Graph::new(&self.schema), &value) {
            return Validation::Unknown("the schema is too complex".to_owned());
        }
        match validator.validate(&value) {
            Ok(()) => Validation::Valid,
            Err(error) => Validation::Invalid(shorten_error(&error)),
        }
    }
}

impl CacheValue for Validator {
    fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn must_rebuild(&self) -> bool {
        false
    }
}

/// Drafts of JSON Schema that a schema may name.
const DRAFTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

/// Removes names of other documents, which are not read, and patterns in a dialect that only the
/// parser supports. Returns the number of remaining patterns.
fn prepare(schema: &mut Value) -> usize {
    let places: Vec<String> =
        Graph::new(schema).nodes.iter().map(|node| node.pointer.clone()).collect();
    let mut patterns = 0;
    let Value::Object(root) = schema else { return patterns };
    let draft = root.get("$schema").and_then(Value::as_str).map(|name| name.trim_end_matches('#'));
    if draft.is_some_and(|name| !DRAFTS.contains(&name)) {
        root.shift_remove("$schema");
    }
    root.shift_remove("$id");
    root.shift_remove("id");
    for place in places {
        let Some(Value::Object(schema)) = schema.pointer_mut(&place) else { continue };
        let pattern = schema.get("pattern").and_then(Value::as_str);
        let own = ["(?i", "(?s", "(?x", "(?m", "(?u", "(?U", "(?-", "&&", "--", "~~", r"\x{"];
        if pattern.is_some_and(|pattern| own.iter().any(|part| pattern.contains(part))) {
            schema.shift_remove("pattern");
        }
        let keys = schema.get("patternProperties").and_then(Value::as_object);
        patterns += usize::from(schema.contains_key("pattern")) + keys.map_or(0, Map::len);
    }
    patterns
}

/// Shortens a message to one line of at most [`MAX_ERROR_CHARS`] characters.
fn shorten_error(sentence: &str) -> String {
    let line: String = sentence.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= MAX_ERROR_CHARS {
        return line;
    }
    line.chars().take(MAX_ERROR_CHARS).chain(" ...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn check(schema: &str, text: &str) -> Validation {
        Validator::new(schema).check(text.as_bytes())
    }

    #[test]
    fn what_no_parser_holds_is_looked_at() {
        for (schema, right, wrong) in [
            (r#"{"uniqueItems": true}"#, "[1, 2]", "[1, 1.0]"),
            (r#"{"not": {"type": "string"}}"#, "1", "\"a\""),
            (r#"{"contains": {"const": 1}}"#, "[2, 1]", "[2]"),
            (r#"{"pattern": "^(?!a)"}"#, "\"b\"", "\"ab\""),
            (r#"{"oneOf": [{"minimum": 1}, {"maximum": 3}]}"#, "5", "2"),
            (r#"{"dependentRequired": {"a": ["b"]}}"#, "{\"b\": 1}", "{\"a\": 1}"),
        ] {
            assert_eq!(check(schema, right), Validation::Valid, "{schema} {right}");
            assert!(matches!(check(schema, wrong), Validation::Invalid(_)), "{schema} {wrong}");
        }
    }

    #[test]
    fn nothing_is_fetched_and_nothing_takes_long() {
        let elsewhere = r#"{"$ref": "http://127.0.0.1:9/a.json"}"#;
        assert!(matches!(check(elsewhere, "1"), Validation::Unknown(_)));
        let mut said = String::from("\"");
        (0..40).for_each(|_| said.push('a'));
        let _ = write!(said, "!\"");
        // Backtracking is bounded.
        let verdict = check(r#"{"pattern": "^(?=(a+)+$)(a+)+\\1$"}"#, &said);
        assert_ne!(verdict, Validation::Valid);
        let cycle = r##"{"anyOf": [{"$ref": "#"}]}"##;
        assert!(matches!(check(cycle, "1"), Validation::Unknown(_)));
    }
}
