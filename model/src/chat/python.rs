//! What Jinja in Python does as Python does, and the one tag that transformers adds.

use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, Output, State, Value, escape_formatter};

/// Makes `environment` test and write values as Python does.
pub(super) fn behave_as_python(environment: &mut Environment<'_>) {
    environment.add_test("iterable", |value: &Value| {
        value.kind() != ValueKind::None && value.try_iter().is_ok()
    });
    environment.set_formatter(format);
    environment.add_filter("string", |value: Value| -> Result<Value, Error> {
        if !is_container(&value) {
            return Ok(if value.kind() == ValueKind::String {
                value
            } else {
                value.to_string().into()
            });
        }
        let mut text = Bounded(String::new());
        represent(&mut text, &value, 0)?;
        Ok(text.0.into())
    });
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map)
}

/// Writes a value; texts in lists and maps with Python's quotes.
fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if is_container(value) {
        return Ok(represent(out, value, 0)?);
    }
    escape_formatter(out, state, value)
}

/// Lists in lists that are written at most.
const DEPTH_MAX: usize = 128;
/// The longest text that a value becomes: lists may have one list twice, and that one another.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Text up to a limit.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > TEXT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Python's `repr`.
fn represent(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    if depth > DEPTH_MAX {
        return Err(fmt::Error);
    }
    let items = || value.try_iter().map_err(|_| fmt::Error);
    match value.kind() {
        ValueKind::String => represent_text(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            out.write_char('[')?;
            for (index, item) in items()?.enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                represent(out, &item, depth + 1)?;
            }
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in items()?.enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                represent(out, &key, depth + 1)?;
                out.write_str(": ")?;
                let item = value.get_item(&key).map_err(|_| fmt::Error)?;
                represent(out, &item, depth + 1)?;
            }
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

fn represent_text(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            _ if letter == quote => write!(out, "\\{letter}")?,
            '\0'..' ' | '\x7f' => write!(out, "\\x{:02x}", u32::from(letter))?,
            _ => out.write_char(letter)?,
        }
    }
    out.write_char(quote)
}

/// The template with `{% generation %}` and `{% endgeneration %}`, which mark what a model is
/// trained to write and write nothing themselves, as a condition that always holds.
pub(super) fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let Some((tag, behind)) = after.split_once("%}") else {
            rest = after;
            continue;
        };
        let word = tag.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace());
        let plain = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        if let Some(plain) = plain {
            out.push_str(&tag.replace(word, plain));
            out.push_str("%}");
            rest = behind;
        } else {
            rest = after;
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_lists_have_pythons_quotes() {
        let write = |text: &str| {
            let mut out = String::new();
            represent(&mut out, &Value::from(text), 0).map(|()| out)
        };
        for (text, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("\"'", "'\"\\''"),
            ("a\nb\t\\\u{1}é", "'a\\nb\\t\\\\\\x01é'"),
        ] {
            assert_eq!(write(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn only_the_tags_of_a_generation_change() {
        for (template, expected) in [
            ("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c"),
            ("{%- generation -%}x{%- endgeneration -%}", "{%- if true -%}x{%- endif -%}"),
            ("{%generation+%}", "{%if true+%}"),
            (
                "{% if generation %}generation{% endif %}{%",
                "{% if generation %}generation{% endif %}{%",
            ),
            ("{% set a = '{% generation %}' %}", "{% set a = '{% if true %}' %}"),
            ("no tag", "no tag"),
        ] {
            assert_eq!(without_generation_tags(template), expected);
        }
    }
}
