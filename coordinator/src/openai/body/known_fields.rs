//! Nested objects of a body, whose fields are all known.

use super::unread::Unread;
use super::values::Fields;
use crate::openai::item::{ErrorCode, Rejection};

/// Checks that `object`, the value of the field `name`, has no fields other than `known`. Null
/// fields are permitted.
///
/// # Errors
/// Returns a rejection of the first unknown field, unless unknown fields are ignored.
pub(super) fn only(
    object: &Fields,
    name: &str,
    known: &[&str],
    unread: &Unread,
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
        unread.ignore_or(&format!("{name}.{field}"), rejection)?;
    }
    Ok(())
}
