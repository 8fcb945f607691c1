//! Arguments of earlier tool calls: JSON texts that a model wrote and that may be cut off.

use serde_json::{Map, Value};

/// Parses the arguments of a call. An empty text is an empty object, a text that was cut off is the
/// object up to the cut, and any other text is returned as a string.
pub(crate) fn parse_arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    let object = |text: &str| serde_json::from_str(text).ok().filter(Value::is_object);
    let cut = || {
        let trimmed = text.trim_start();
        let [whole, safe] = close_brackets(trimmed).filter(|_| trimmed.starts_with('{'))?;
        object(&whole).or_else(|| object(&safe))
    };
    object(text).or_else(cut).unwrap_or_else(|| Value::from(text))
}

/// Closes all open strings, objects and lists of a text that was cut off. Returns two candidates:
/// the closed text, and the closed text up to the end of its last complete value. Returns `None` if
/// nothing is open or brackets do not match.
fn close_brackets(text: &str) -> Option<[String; 2]> {
    let mut open: Vec<char> = Vec::new();
    let (mut in_string, mut is_escaped) = (false, false);
    // End of the last complete value of an object or a list, and the brackets to be closed there.
    let mut safe = (0, Vec::new());
    for (at, char) in text.char_indices() {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            '{' | '[' => {
                open.push(if char == '{' { '}' } else { ']' });
                safe = (at + 1, open.clone());
            }
            '}' | ']' => {
                if open.pop() != Some(char) {
                    return None;
                }
                safe = (at + 1, open.clone());
            }
            ',' => safe = (at, open.clone()),
            _ => {}
        }
    }
    let ends = |open: &[char]| open.iter().rev().collect::<String>();
    if open.is_empty() {
        return None;
    }
    let complete = if is_escaped { &text[..text.len() - 1] } else { text };
    let quote = if in_string { "\"" } else { "" };
    let whole = format!("{complete}{quote}{}", ends(&open));
    Some([whole, format!("{}{}", &text[..safe.0], ends(&safe.1))])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_cut_is_read_as_far_as_it_goes() {
        for (text, expected) in [
            ("", json!({})),
            (r#"{"a": 1}"#, json!({"a": 1})),
            (r#"{"a": "Os"#, json!({"a": "Os"})),
            (r#"{"a": "O\"#, json!({"a": "O"})),
            (r#"{"a": [1, {"b": "}"#, json!({"a": [1, {"b": "}"}]})),
            (r#"{"a": 1, "b"#, json!({"a": 1})),
            (r#"{"a": 1, "b": tr"#, json!({"a": 1})),
            (r#"{"a": "\u00"#, json!({})),
            ("{", json!({})),
            ("  {\"a\": 5, ", json!({"a": 5})),
            ("[1]", json!("[1]")),
            ("city: Oslo", json!("city: Oslo")),
            (r#"{"a": ]"#, json!(r#"{"a": ]"#)),
        ] {
            assert_eq!(parse_arguments(text), expected, "{text}");
        }
    }
}
