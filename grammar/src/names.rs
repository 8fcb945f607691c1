//! Names, and texts as rules have them.

use serde_json::Value;

/// Whether a function may be called so.
pub fn is_function_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain)
}

/// A text between quotes.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
