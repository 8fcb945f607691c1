//! How a JSON text is written.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::regex;

/// Escapes in strings. Without `\u`, which is only ever needed for control characters, a string has
/// one spelling, so that no key can be said as if it were another.
pub(crate) const ESCAPES: &str = "nrbtf\\\"";

/// What may stand between the parts of a JSON text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Whitespace {
    /// A space or nothing: a model may write as it is used to, and cannot go on with spaces until
    /// its tokens are used up.
    #[default]
    OneSpace,
    Nothing,
    /// What matches a regular expression, or nothing.
    Pattern(String),
}

impl Whitespace {
    /// Into a schema, which may say itself how its answers are written.
    pub(crate) fn write(&self, schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
        let written = schema.entry("x-guidance").or_insert_with(|| json!({}));
        let Value::Object(written) = written else { return Ok(()) };
        if !["whitespace_flexible", "whitespace_pattern"]
            .iter()
            .any(|name| written.contains_key(*name))
        {
            let (name, value) = match self {
                Whitespace::OneSpace => ("whitespace_pattern", json!(" ")),
                Whitespace::Nothing => ("whitespace_flexible", json!(false)),
                Whitespace::Pattern(pattern) => {
                    ("whitespace_pattern", json!(regex::whitespace(pattern)?))
                }
            };
            written.insert(name.to_owned(), value);
        }
        written.entry("json_allowed_escapes").or_insert_with(|| json!(ESCAPES));
        Ok(())
    }
}
