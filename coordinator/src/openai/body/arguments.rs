//! Arguments of earlier calls: texts that a model wrote, perhaps not to their end.

use serde_json::{Map, Value};

/// The object of a text; of one that was cut as far as it goes, of one that is something else the
/// text itself.
pub(super) fn read(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    let object = |text: &str| serde_json::from_str(text).ok().filter(Value::is_object);
    let cut = || {
        let begun = text.trim_start();
        let [whole, safe] = closed(begun).filter(|_| begun.starts_with('{'))?;
        object(&whole).or_else(|| object(&safe))
    };
    object(text).or_else(cut).unwrap_or_else(|| Value::from(text))
}

/// A text with what is open in it closed: all of it, and up to its last whole value. `None` where
/// nothing is open.
fn closed(text: &str) -> Option<[String; 2]> {
    let mut open: Vec<char> = Vec::new();
    let (mut in_string, mut is_escaped) = (false, false);
    // Where the last whole value of an object or a list ends, and what is open there.
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
    let said = if is_escaped { &text[..text.len() - 1] } else { text };
    let quote = if in_string { "\"" } else { "" };
    let whole = format!("{said}{quote}{}", ends(&open));
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
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
