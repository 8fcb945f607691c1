//! Behaviour in which Jinja in Python differs from minijinja, and the `generation` tag, which
//! transformers adds.

use std::borrow::Cow;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Output, State, Value, escape_formatter, filters};

use super::concat;
use super::python_repr::{concatenate, differs_from_jinja, python_str, write_repr};

/// Configures `environment` to test and format values as Python does.
pub(super) fn add_python_methods(environment: &mut Environment<'_>) {
    environment.add_test("iterable", |value: &Value| {
        value.kind() != ValueKind::None && value.try_iter().is_ok()
    });
    environment.set_formatter(format);
    environment.add_function(concat::FUNCTION, |values: Rest<Value>| {
        concatenate(&values).map(Value::from)
    });
    environment.add_filter("string", |value: Value| to_python_string(&value));
    environment.add_filter("join", join);
    environment.add_filter("__capitalize", filters::capitalize);
    environment.add_filter("__escape", filters::escape);
    environment.add_filter("__lower", filters::lower);
    environment.add_filter("__replace", filters::replace);
    environment.add_filter("__title", filters::title);
    environment.add_filter("__trim", filters::trim);
    environment.add_filter("__upper", filters::upper);
    for (name, of_text) in [
        ("capitalize", "__capitalize"),
        ("e", "__escape"),
        ("escape", "__escape"),
        ("lower", "__lower"),
        ("replace", "__replace"),
        ("title", "__title"),
        ("trim", "__trim"),
        ("upper", "__upper"),
    ] {
        environment.add_filter(
            name,
            move |state: &State<'_, '_>, value: Value, more: Rest<Value>| {
                let mut arguments = vec![to_python_string(&value)?];
                arguments.extend(more.0);
                state.apply_filter(of_text, &arguments)
            },
        );
    }
}

/// Returns a string or undefined value unchanged, and any other as its Python `str`.
fn to_python_string(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => Ok(value.clone()),
        _ => Ok(Value::from(python_str(value)?.into_owned())),
    }
}

/// Jinja's `join`: concatenates the texts of items, or of one of their attributes, with a
/// separator.
fn join(value: Value, between: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let between = match between {
        Some(between) => Some(between),
        None => options.get("d")?,
    };
    let attribute: Option<Value> = options.get("attribute")?;
    options.assert_all_used()?;
    let mut parts = Vec::new();
    for item in value.try_iter()? {
        if let Some(between) = between.as_ref().filter(|_| !parts.is_empty()) {
            parts.push(between.clone());
        }
        parts.push(match &attribute {
            Some(path) => attribute_of(item, path)?,
            None => item,
        });
    }
    concatenate(&parts).map(Value::from)
}

/// Returns the attribute of `item` at a path whose names are separated by points.
fn attribute_of(item: Value, path: &Value) -> Result<Value, Error> {
    let Some(names) = path.as_str() else { return item.get_item(path) };
    names.split('.').try_fold(item, |item, name| match name.parse::<usize>() {
        Ok(index) => item.get_item(&Value::from(index)),
        Err(_) => item.get_attr(name),
    })
}

/// Writes a value as Python formats it.
fn format(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if differs_from_jinja(value) {
        return Ok(write_repr(out, value, 0)?);
    }
    escape_formatter(out, state, value)
}

/// Returns the template with all kinds of line ends replaced by `\n`, as Jinja does.
pub(super) fn with_plain_line_ends(template: &str) -> Cow<'_, str> {
    match template.contains('\r') {
        true => template.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => template.into(),
    }
}

/// Returns the template with `{% generation %}` and `{% endgeneration %}` replaced by a condition
/// that is always true. These tags mark the text that a model is trained to generate, and produce
/// no output themselves.
pub(super) fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{%") {
        out.push_str(before);
        out.push_str("{%");
        let Some((tag, after_tag)) = after.split_once("%}") else {
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
            rest = after_tag;
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
