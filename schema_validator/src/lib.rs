//! Validation of JSON values against a JSON Schema with bounded patterns and without fetching
//! anything.
//!
//! A crate of its own because the validators of `jsonschema` are generic, so that they are compiled
//! where they are used: without optimisation here, since a few microseconds per answer do not
//! matter, and apart from code that runs for each token.

use serde_json::Value;

/// Maximum number of backtracking steps of one pattern on one text.
const MAX_BACKTRACKS: usize = 10_000;
/// Maximum size of one compiled pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1 << 18;

/// A compiled schema.
#[derive(Debug)]
pub struct SchemaValidator(jsonschema::Validator);

impl SchemaValidator {
    /// Compiles a schema. References to other documents are not fetched, and formats are
    /// annotations.
    ///
    /// # Errors
    /// The reason why it is no valid schema.
    pub fn new(schema: &Value) -> Result<SchemaValidator, String> {
        let patterns = jsonschema::PatternOptions::fancy_regex()
            .backtrack_limit(MAX_BACKTRACKS)
            .size_limit(MAX_PATTERN_BYTES)
            .dfa_size_limit(MAX_PATTERN_BYTES);
        jsonschema::options()
            .offline()
            .should_validate_formats(false)
            .with_pattern_options(patterns)
            .build(schema)
            .map(SchemaValidator)
            .map_err(|error| error.to_string())
    }

    /// Validates a value.
    ///
    /// # Errors
    /// The first reason why the value does not match the schema.
    pub fn validate(&self, value: &Value) -> Result<(), String> {
        self.0.validate(value).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_validated_and_nothing_is_fetched() {
        let validator = SchemaValidator::new(&json!({"minimum": 3})).expect("a schema");
        assert_eq!(validator.validate(&json!(3)), Ok(()));
        assert!(validator.validate(&json!(2)).is_err());
        assert!(SchemaValidator::new(&json!({"type": "number", "minimum": "a"})).is_err());
        assert!(SchemaValidator::new(&json!({"$ref": "http://127.0.0.1:9/a.json"})).is_err());
    }
}
