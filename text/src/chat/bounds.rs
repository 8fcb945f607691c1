//! Bounds on allocations and loops of Jinja filters and methods that do not consume fuel.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::python_repr::python_str;

/// Replaces unbounded filters and methods by bounded ones.
pub(super) fn limit_filters(environment: &mut Environment<'_>) {
    environment.add_filter("slice", |state: &State<'_, '_>, value: Value, count, fill| {
        filters::slice(state, value, check_bound("slice", count)?, fill)
    });
    environment.add_filter("batch", |state: &State<'_, '_>, value: Value, count, fill| {
        filters::batch(state, value, check_bound("batch", count)?, fill)
    });
    environment.add_filter("indent", indent);
    environment.add_filter("format", |state: &State<'_, '_>, text: Value, values: Rest<Value>| {
        check_widths(text.as_str().unwrap_or_default())?;
        let values: Result<Vec<Value>, Error> = conversions(text.as_str().unwrap_or_default())
            .chain(std::iter::repeat(' '))
            .zip(values.0)
            .map(|(conversion, value)| match (conversion, value.kind()) {
                ('s', _) | (_, ValueKind::Seq | ValueKind::Map) => {
                    python_str(&value).map(|text| Value::from(&*text))
                }
                _ => Ok(value),
            })
            .collect();
        filters::format(state, &text, Rest(values?))
    });
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        let empty = arguments.first().and_then(Value::as_str).is_some_and(str::is_empty);
        if method == "count" && empty {
            return Err(refusal("count() of an empty text".to_owned()));
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
    });
}

/// Largest width or number of parts that a filter accepts.
const FILTER_COUNT_MAX: usize = 1000;

/// Returns the error of a filter that refuses its arguments.
pub(super) fn refusal(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

fn check_bound(filter: &str, count: usize) -> Result<usize, Error> {
    if count <= FILTER_COUNT_MAX {
        return Ok(count);
    }
    Err(refusal(format!("the filter {filter} takes at most {FILTER_COUNT_MAX}, not {count}")))
}

/// Returns the conversion letters of a format string, each of which consumes one value.
fn conversions(text: &str) -> impl Iterator<Item = char> {
    let mut parts = text.split('%').skip(1);
    std::iter::from_fn(move || {
        loop {
            let part = parts.next()?;
            match part.chars().find(char::is_ascii_alphabetic) {
                // Two percent signs are an escaped one, and the text after them is literal.
                _ if part.is_empty() => parts.next().map(drop)?,
                Some(letter) => return Some(letter),
                None => {}
            }
        }
    })
}

/// Refuses a format with large widths or precisions, or with `*`, which takes them from values.
fn check_widths(text: &str) -> Result<(), Error> {
    let long = |digits: &str| digits.parse().map_or(!digits.is_empty(), |n: usize| n > 1000);
    let large = text.split('%').skip(1).any(|conversion| {
        let spec = conversion.split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or_default();
        spec.contains('*') || spec.split(|c: char| !c.is_ascii_digit()).any(long)
    });
    if large {
        return Err(refusal(format!("the filter format takes widths up to {FILTER_COUNT_MAX}")));
    }
    Ok(())
}

/// Jinja's `indent`, which by default skips the first line and blank lines.
fn indent(
    text: Value,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let spaces = " ".repeat(check_bound("indent", width)?);
    let text = python_str(&text)?;
    // Line ends as in Python's `splitlines`.
    let text = text.replace("\r\n", "\n");
    let ends =
        |c: char| matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let lines = text.split(ends).enumerate().map(|(index, line)| {
        let indented = if index == 0 { first } else { blank || !line.is_empty() };
        if indented { format!("{spaces}{line}") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
