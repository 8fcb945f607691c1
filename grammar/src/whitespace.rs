//! How a JSON text is written.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::regex;

/// Escapes in strings. Without `\u`, which is only ever needed for control characters, a string has
/// one spelling, so that no key can be said as if it were another.
pub(crate) const ESCAPES: &str = "nrbtf\\\"";
/// The same where a schema names texts with control characters. Of keys only one spelling is let
/// through (`keys.rs`).
const ESCAPES_WITH_CONTROL: &str = "nrbtf\\\"u";

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
    /// Into a schema, which may say itself how its answers are written; `has_control`: it names
    /// texts with control characters.
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
