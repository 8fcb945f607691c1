//! How large and deep a form may be: what reads it recurses, and would use up the stack.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::error::GrammarError;

/// Of a schema's text: well above those that people write.
pub(crate) const SCHEMA_BYTES: usize = 1 << 20;
/// Values in a schema, which bounds the rules made of it and the time to measure it.
pub(crate) const SCHEMA_NODES: usize = 20_000;
/// Values within each other, references followed: as deep as a JSON text may be.
pub(crate) const SCHEMA_DEPTH: usize = 128;
/// Of a regular expression, in a schema too.
pub(crate) const REGEX_BYTES: usize = 1 << 14;
/// Groups within each other.
pub(crate) const REGEX_DEPTH: usize = 64;
/// Texts to choose from, each of which is a rule's alternative.
pub(crate) const CHOICES: usize = 4096;
/// Of all texts to choose from together.
pub(crate) const CHOICE_BYTES: usize = 1 << 18;

fn within(what: &str, count: usize, bound: usize) -> Result<(), GrammarError> {
    if count <= bound {
        return Ok(());
    }
    Err(GrammarError(format!("{what}, {count}, exceeds the bound of {bound}")))
}

/// Of a schema before it is parsed.
pub(crate) fn check_schema_text(text: &str) -> Result<(), GrammarError> {
    within("the size of the schema in bytes", text.len(), SCHEMA_BYTES)
}

pub(crate) fn check_choices(texts: &[String]) -> Result<(), GrammarError> {
    within("the number of choices", texts.len(), CHOICES)?;
    let bytes = texts.iter().map(String::len).sum();
    within("the size of all choices in bytes", bytes, CHOICE_BYTES)
}

pub(crate) fn check_regex(expression: &str) -> Result<(), GrammarError> {
    within("the size of the regular expression in bytes", expression.len(), REGEX_BYTES)?;
    let (mut depth, mut escaped) = (0_usize, false);
    for byte in expression.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        within("the nesting of the regular expression's groups", depth, REGEX_DEPTH)?;
    }
    Ok(())
}

/// Of a schema, its local references followed except to what they are in.
pub(crate) fn check_schema(root: &Value) -> Result<(), GrammarError> {
    let mut nodes = 0;
    let mut rest = vec![root];
    while let Some(value) = rest.pop() {
        nodes += 1;
        within("the number of the schema's values", nodes, SCHEMA_NODES)?;
        match value {
            Value::Array(items) => rest.extend(items),
            Value::Object(fields) => rest.extend(fields.values()),
            _ => {}
        }
    }
    let address = |value: &Value| std::ptr::from_ref(value).addr();
    // A value is looked at again only where it is deeper, so at most as often as the bound.
    let mut deepest = HashMap::new();
    let mut path = HashSet::new();
    let mut rest = vec![(root, 1, false)];
    while let Some((value, depth, left)) = rest.pop() {
        let place = address(value);
        if left {
            path.remove(&place);
            continue;
        }
        if path.contains(&place) || deepest.get(&place).is_some_and(|seen| *seen >= depth) {
            continue;
        }
        within("the depth of the schema with its references", depth, SCHEMA_DEPTH)?;
        deepest.insert(place, depth);
        path.insert(place);
        rest.push((value, depth, true));
        match value {
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1, false))),
            Value::Object(fields) => {
                for (name, field) in fields {
                    match (name.as_str(), field) {
                        ("$ref", Value::String(to)) => {
                            rest.push((follow(root, to)?, depth + 1, false));
                        }
                        ("$id", Value::String(_)) if place != address(root) => {
                            return Err(GrammarError(
                                "`$id` is followed only at the schema's root".to_owned(),
                            ));
                        }
                        ("pattern", Value::String(expression)) => check_regex(expression)?,
                        ("patternProperties", Value::Object(patterns)) => {
                            patterns.keys().try_for_each(|pattern| check_regex(pattern))?;
                            rest.push((field, depth + 1, false));
                        }
                        // Texts of values, not schemas.
                        ("const" | "enum" | "default" | "examples", field)
                            if !field.is_object() => {}
                        _ => rest.push((field, depth + 1, false)),
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a reference leads to.
fn follow<'a>(root: &'a Value, to: &str) -> Result<&'a Value, GrammarError> {
    let Some(pointer) = to.strip_prefix('#').filter(|to| to.is_empty() || to.starts_with('/'))
    else {
        return Err(GrammarError(
            "only references within the schema (`#/...`) are followed".to_owned(),
        ));
    };
    root.pointer(pointer)
        .ok_or_else(|| GrammarError("a `$ref` leads to nothing in the schema".to_owned()))
}
