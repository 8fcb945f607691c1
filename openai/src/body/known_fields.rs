//! Nested objects of a body, whose fields are all known.

use super::unknown_fields::UnknownFieldPolicy;
use super::values::JsonFields;
use crate::input_line::{ErrorCode, Rejection};

/// Checks that `object`, the value of the field `name`, has no fields other than `known`. Null
/// fields are permitted.
///
/// # Errors
/// Returns a rejection of the first unknown field, unless unknown fields are ignored.
pub(crate) fn reject_unknown(
    object: &JsonFields,
    name: &str,
    known: &[&str],
    unknown_fields: &UnknownFieldPolicy,
) -> Result<(), Rejection> {
    for (field, value) in object {
        if value.is_null() || known.contains(&field.as_str()) {
            continue;
        }
        let message = format!(
            "Unknown parameter: '{field}' in '{name}'. Remove it. Supported parameters: {}.",
            known.join(", ")
        );
        let rejection = Rejection::new(ErrorCode::UnsupportedField, message).with_param(field);
        unknown_fields.ignore_or_reject(&format!("{name}.{field}"), rejection)?;
    }
    Ok(())
}
