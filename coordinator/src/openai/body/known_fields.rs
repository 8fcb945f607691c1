//! Objects within a body, whose fields are known one by one.

use super::unread::Unread;
use super::values::Fields;
use crate::openai::item::{ErrorCode, Rejection};

/// Checks that an object of the field `name` has no other fields than `known`.
///
/// # Errors
/// A rejection of the first other one that is given, unless unknown fields are left out.
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
            "The field \"{field}\" of \"{name}\" is not known here; leave it out. Known are {}.",
            known.join(", ")
        );
        let rejection = Rejection::new(ErrorCode::UnsupportedField, message);
        unread.ignore_or(&format!("{name}.{field}"), rejection)?;
    }
    Ok(())
}
