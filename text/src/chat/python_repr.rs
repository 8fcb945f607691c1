//! Values as formatted by Python's `str` and `repr`.

use std::borrow::Cow;
use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Maximum depth of nested lists that is written.
const DEPTH_MAX: usize = 128;
/// Maximum length of a value's text, in bytes. A limit is necessary because a list may contain
/// another list twice, and that list a third, and so on.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Returns true if minijinja formats values of this type differently.
pub(super) fn differs_from_jinja(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => true,
        ValueKind::Number => !value.is_integer(),
        _ => false,
    }
}

/// Returns Python's `str` of a value; an empty text if it is undefined.
///
/// # Errors
/// Lists that are too long or too deeply nested to be written.
pub(super) fn python_str(value: &Value) -> Result<Cow<'_, str>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Borrowed(text));
    }
    let mut text = LimitedText(String::new());
    write_repr(&mut text, value, 0)?;
    Ok(Cow::Owned(text.0))
}

/// Returns the concatenated Python `str` of all values.
///
/// # Errors
/// See [`python_str`].
pub(super) fn concatenate(values: &[Value]) -> Result<String, Error> {
    let mut whole = String::new();
    for value in values {
        whole.push_str(&python_str(value)?);
        if whole.len() > super::MAX_OUTPUT_BYTES {
            let reason = format!("a text of more than {} bytes", super::MAX_OUTPUT_BYTES);
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
    }
    Ok(whole)
}

/// Text of limited length.
struct LimitedText(String);

impl Write for LimitedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > TEXT_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Writes Python's `repr` of a value.
///
/// # Errors
/// Lists that are too deeply nested, or a writer that accepts no more text.
pub(super) fn write_repr(out: &mut dyn Write, value: &Value, depth: usize) -> fmt::Result {
    if depth > DEPTH_MAX {
        return Err(fmt::Error);
    }
    let items = || value.try_iter().map_err(|_| fmt::Error);
    match value.kind() {
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        // This includes slices, which are lists in Python.
        ValueKind::Seq | ValueKind::Iterable => {
            out.write_char('[')?;
            for (index, item) in items()?.enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(out, &item, depth + 1)?;
            }
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            for (index, key) in items()?.enumerate() {
                out.write_str(if index > 0 { ", " } else { "" })?;
                write_repr(out, &key, depth + 1)?;
                out.write_str(": ")?;
                let item = value.get_item(&key).map_err(|_| fmt::Error)?;
                write_repr(out, &item, depth + 1)?;
            }
            out.write_char('}')
        }
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float(number)),
            Err(_) => write!(out, "{value}"),
        },
        _ => write!(out, "{value}"),
    }
}

fn write_str_repr(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for letter in text.chars() {
        match letter {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            _ if letter == quote => write!(out, "\\{letter}")?,
            '\0'..' ' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                write!(out, "\\x{:02x}", u32::from(letter))?
            }
            _ => out.write_char(letter)?,
        }
    }
    out.write_char(quote)
}

/// Returns Python's `repr` of a float: the fewest digits that identify it, and an exponent of at
/// least two digits if the number is below 1e-4 or at least 1e16.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_lists_have_pythons_quotes() {
        let write = |text: &str| {
            let mut out = String::new();
            write_repr(&mut out, &Value::from(text), 0).map(|()| out)
        };
        for (text, expected) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("\"'", "'\"\\''"),
            ("a\nb\t\\\u{1}é", "'a\\nb\\t\\\\\\x01é'"),
            ("\u{85}\u{a0}¡", "'\\x85\\xa0¡'"),
        ] {
            assert_eq!(write(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn floats_are_pythons() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456.75, "123456.75"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.234_567_890_123_456_8e17, "1.2345678901234568e+17"),
            (-2.5e-300, "-2.5e-300"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float(number), expected);
        }
    }
}
