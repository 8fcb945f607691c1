//! Whitespace and escapes of JSON texts.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::regex;

/// Allowed escapes in strings. Without `\u`, which is needed for control characters only, a string
/// has one spelling, so that no key can be written like another one.
pub(crate) const ESCAPES: &str = "nrbtf\\\"";
/// Allowed escapes in strings if a schema contains control characters. `keys.rs` accepts only one
/// spelling of each key.
const ESCAPES_WITH_CONTROL: &str = "nrbtf\\\"u";

/// Whitespace that is allowed between the parts of a JSON text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Whitespace {
    /// A space or nothing: a model may write in its usual style, but cannot use up its tokens with
    /// spaces.
    #[default]
    OneSpace,
    Nothing,
    /// A match of a regular expression, or nothing.
    Pattern(String),
}

impl Whitespace {
    /// Adds whitespace and escapes to a schema, unless it specifies its own; `has_control` is true
    /// if it contains strings with control characters.
    pub(crate) fn write(
        &self,
        schema: &mut Map<String, Value>,
        has_control: bool,
    ) -> Result<(), GrammarError> {
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
        let escapes = if has_control { ESCAPES_WITH_CONTROL } else { ESCAPES };
        written.entry("json_allowed_escapes").or_insert_with(|| json!(escapes));
        Ok(())
    }
}
