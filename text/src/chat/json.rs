//! The filter `tojson` as in transformers: Python's `json.dumps`.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::bounds::refusal;
use super::python_repr::float;

/// Maximum indentation, since every line of the output repeats it.
const MAX_INDENT: usize = 64;
/// Maximum length of a separator, since the output contains one per value.
const MAX_SEPARATOR_BYTES: usize = 64;

/// `json.dumps(value, ensure_ascii=False)`. Jinja's own filter is intended for HTML and would
/// escape `<`, `>`, `&` and `'`.
pub(super) fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let is_ascii: Option<bool> = options.get("ensure_ascii")?;
    let is_sorted: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(refusal(format!("tojson indents by at most {MAX_INDENT} spaces")));
    }
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([item, key]) if item.len().max(key.len()) <= MAX_SEPARATOR_BYTES => {
            (item.as_str(), key.as_str())
        }
        Some(_) => return Err(refusal("tojson takes two short separators".to_owned())),
    };
    let is_ascii = is_ascii.unwrap_or(false);
    let format = PythonFormatter { indent, item, key, is_ascii, level: 0, is_empty: true };
    let bad = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, format);
    if is_sorted.unwrap_or(false) {
        let mut value = serde_json::to_value(&value).map_err(bad)?;
        value.sort_all_objects();
        value.serialize(&mut serializer).map_err(bad)?;
    } else {
        value.serialize(&mut serializer).map_err(bad)?;
    }
    String::from_utf8(text)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// `json.dumps(value, ensure_ascii=False)`, without options.
pub(super) fn dumps(value: &serde_json::Value) -> String {
    let (item, key) = (", ", ": ");
    let format =
        PythonFormatter { indent: None, item, key, is_ascii: false, level: 0, is_empty: true };
    let mut text = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut text, format));
    written.expect("JSON values always serialise");
    String::from_utf8_lossy(&text).into_owned()
}

/// A formatter with Python's JSON layout.
struct PythonFormatter<'a> {
    /// Number of spaces per level; `None` for output on one line.
    indent: Option<usize>,
    /// Separator after an item. `key` is the one after a key.
    item: &'a str,
    key: &'a str,
    /// True if non-ASCII characters are escaped.
    is_ascii: bool,
    level: usize,
    /// True if the innermost open list or object has no item yet.
    is_empty: bool,
}

impl PythonFormatter<'_> {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.is_empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if !self.is_empty {
            self.new_line(writer)?;
        }
        self.is_empty = false;
        writer.write_all(bracket)
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.is_empty = false;
        self.new_line(writer)
    }

    fn new_line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.level * indent).try_for_each(|_| writer.write_all(b" "))
    }
}

impl Formatter for PythonFormatter<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.begin(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.is_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for letter in fragment.chars() {
            if letter.is_ascii() {
                write!(writer, "{letter}")?;
            } else {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}
