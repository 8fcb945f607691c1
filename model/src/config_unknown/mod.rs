//! The fields of a `config.json` that no family reads.
//!
//! A field is refused only if its value can change the computation. The rules, in this order:
//!
//! 1. A name without effect on inference passes, regardless of its value (`names`).
//! 2. A value that turns a feature off passes: null, false, 0, and empty strings, lists and
//!    objects, and also a factor of 1. Fields that are enabled by default are the exception.
//! 3. A few fields pass if they have the one value that describes the actual computation.
//! 4. Of the remaining fields, those whose name contains a part of the model (`attention`, `rope`,
//!    `expert` ...) are refused: such a field is likely to matter.
//! 5. All others are metadata of tools. No list of their names can be complete, so these fields
//!    pass, and the program reports once that it does not know them.

mod names;

use serde_json::Value;

use crate::config_fields::{ConfigError, ConfigFields};
use crate::unknown_field::UnknownField;
use names::{ON_UNLESS_FALSE, PARTS_OF_MODELS, WITHOUT_EFFECT, WORDS_WITHOUT_EFFECT};

/// Fields without effect if `use_sliding_window` is false.
const WINDOWS: [&str; 2] = ["max_window_layers", "sliding_window"];
/// Words in the names of fields that have no effect if they are 1.
const FACTORS: [&str; 5] = ["factor", "multiplier", "scale", "scaler", "scaling"];

/// Checks the fields that no family has read, and returns the unknown ones that pass.
///
/// # Errors
/// The alphabetically first field that may change the computation.
pub(crate) fn check(fields: &ConfigFields<'_>) -> Result<Vec<UnknownField>, ConfigError> {
    let windows_are_off = fields
        .unread()
        .any(|(name, value)| name == "use_sliding_window" && *value == Value::Bool(false));
    let mut unknown = Vec::new();
    for (name, value) in fields.unread() {
        let passes = has_no_effect(name)
            || is_neutral(name, value)
            || affects_computation(name, value)
            || (windows_are_off && WINDOWS.contains(&name.as_str()));
        if passes {
            continue;
        }
        let field = UnknownField::new(name, value);
        if words(name).any(|word| PARTS_OF_MODELS.contains(&word)) {
            return Err(ConfigError::UnknownField(field));
        }
        unknown.push(field);
    }
    Ok(unknown)
}

/// Returns true if fields of this name never affect an answer.
fn has_no_effect(name: &str) -> bool {
    const OF_TOKENS: [&str; 3] = ["_token_id", "_token_ids", "_token_index"];
    WITHOUT_EFFECT.contains(&name)
        || OF_TOKENS.iter().any(|end| name.ends_with(end))
        || words(name).any(|word| WORDS_WITHOUT_EFFECT.contains(&word))
}

/// Returns true if the value turns the field off.
pub(crate) fn is_neutral(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => *value == ON_UNLESS_FALSE.contains(&name),
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => true,
            Some(1.0) => words(name).any(|word| FACTORS.contains(&word)),
            _ => false,
        },
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

/// Returns true if the value describes the default computation.
fn affects_computation(name: &str, value: &Value) -> bool {
    match name {
        "layer_types" => value
            .as_array()
            .is_some_and(|types| types.iter().all(|kind| kind.as_str() == Some("full_attention"))),
        "position_embedding_type" => matches!(value.as_str(), Some("rope" | "rotary")),
        _ => false,
    }
}

/// Returns the words of a name, which are separated by underscores and points.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(['_', '.']).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_do_not_contradict_each_other() {
        for word in WORDS_WITHOUT_EFFECT {
            assert!(!PARTS_OF_MODELS.contains(word), "{word}");
        }
        for name in ON_UNLESS_FALSE {
            assert!(!has_no_effect(name), "{name}");
        }
    }
}
