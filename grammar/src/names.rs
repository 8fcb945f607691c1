//! Function names, and literals of grammar rules.

use serde_json::Value;

/// Returns true if a name is a valid function name.
pub fn is_function_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain)
}

/// Returns a text as a quoted literal.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
