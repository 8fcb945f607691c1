//! Preparation of JSON Schemas for compilation: checks their bounds and translates them to what the
//! parser supports.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use crate::bounds::{
    MAX_MULTIPLE_OF_DECIMALS, MAX_MULTIPLE_OF_PRODUCT, MAX_OPTIONAL_PROPERTIES, MAX_PATTERN_PAIRS,
    MAX_PATTERNS, MAX_PROPERTIES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, MAX_SCHEMA_POINTER_BYTES,
    check_limit, check_schema_text,
};
use crate::error::GrammarError;
use crate::lower::{UnsupportedKeywords, drop_references, lower};
use crate::subschemas::{all, below, target};
use crate::{control, regex};

/// A schema translated to what the parser supports.
#[derive(Debug)]
pub(crate) struct LoweredSchema {
    pub(crate) value: Value,
    /// Keywords that are not enforced during generation, but checked when the answer has ended.
    pub(crate) unenforced: BTreeSet<String>,
    /// True if some of its strings contain characters that can only be written as `\u00XX`.
    pub(crate) has_control: bool,
}

/// Reads a schema and translates its patterns from ECMA 262 to the parser's dialect.
///
/// # Errors
/// Returns an error if the text is not JSON, exceeds its bounds, or contains unsupported
/// references.
pub(crate) fn read(
    text: &str,
    unsupported: UnsupportedKeywords,
) -> Result<LoweredSchema, GrammarError> {
    check_schema_text(text)?;
    let mut value = serde_json::from_str(text).map_err(|error| GrammarError::new(&error))?;
    let mut unenforced = BTreeSet::new();
    check_size(&value)?;
    if unsupported == UnsupportedKeywords::Removed {
        drop_references(&mut value, &mut unenforced, is_external_reference);
    }
    check_depth(&value)?;
    lower(&mut value, unsupported, &mut unenforced)?;
    write_patterns(&mut value, unsupported, &mut unenforced)?;
    check_conjunctions(&value)?;
    let has_control = control::is_needed(&value);
    Ok(LoweredSchema { value, unenforced, has_control })
}

/// Checks the bounds on schemas that apply to the same value, for each schema.
fn check_conjunctions(root: &Value) -> Result<(), GrammarError> {
    let mut pairs = 0;
    let mut effort = 0;
    for schema in all(root) {
        let parts = parts(root, schema);
        effort += parts.len();
        check_limit("the number of schemas that apply together", effort, 4 * MAX_SCHEMA_NODES)?;
        let count = |name: &str| -> usize {
            let of = |part: &&Map<String, Value>| match part.get(name) {
                Some(Value::Object(fields)) => fields.len(),
                Some(Value::Array(items)) => items.len(),
                Some(_) => 1,
                None => 0,
            };
            parts.iter().map(of).sum()
        };
        let (declared, required) = (count("properties"), count("required"));
        check_limit(
            "the number of an object's `properties`",
            declared.max(required),
            MAX_PROPERTIES,
        )?;
        let optional = declared.saturating_sub(required);
        check_limit(
            "the number of an object's optional `properties`",
            optional,
            MAX_OPTIONAL_PROPERTIES,
        )?;
        check_limit("the number of patterns that apply together", count("pattern"), MAX_PATTERNS)?;
        check_multiples(parts.iter().filter_map(|part| part.get("multipleOf")?.as_f64()))?;
        pairs += count("patternProperties").pow(2) / 2;
        check_limit(
            "the number of pairs of an object's `patternProperties`",
            pairs,
            MAX_PATTERN_PAIRS,
        )?;
    }
    Ok(())
}

/// Checks the bounds on `multipleOf` of schemas that apply to the same number.
fn check_multiples(numbers: impl Iterator<Item = f64>) -> Result<(), GrammarError> {
    let mut product = 1.0;
    let mut unit = 1.0;
    for number in numbers {
        let scaled = (0..=MAX_MULTIPLE_OF_DECIMALS).map(|decimals| 10f64.powi(decimals as i32));
        let is_whole = |scale: &f64| {
            let scaled = number * scale;
            scaled >= 1.0 && (scaled - scaled.round()).abs() <= scaled * 1e-12
        };
        let Some(scale) = scaled.into_iter().find(is_whole) else {
            return Err(GrammarError(format!(
                "`multipleOf` must be above 0 and have at most {MAX_MULTIPLE_OF_DECIMALS} decimals"
            )));
        };
        product *= number * scale;
        unit = scale.max(unit);
    }
    check_limit(
        "`multipleOf` in units of its last decimal",
        (product * unit) as usize,
        MAX_MULTIPLE_OF_PRODUCT,
    )
}

/// Returns a schema together with those that it includes by `allOf` and `$ref`.
pub(crate) fn parts<'s>(
    root: &'s Value,
    schema: &'s Map<String, Value>,
) -> Vec<&'s Map<String, Value>> {
    let mut found: Vec<&Map<String, Value>> = Vec::new();
    let mut seen = HashSet::new();
    let mut rest = vec![schema];
    while let Some(part) = rest.pop() {
        if !seen.insert(std::ptr::from_ref(part)) {
            continue;
        }
        found.push(part);
        if let Some(Value::Array(all)) = part.get("allOf") {
            rest.extend(all.iter().filter_map(Value::as_object));
        }
        let to = part.get("$ref").and_then(Value::as_str);
        rest.extend(to.and_then(|to| root.pointer(target(to))?.as_object()));
    }
    found
}

/// Checks the number of a schema's values, and the length of the JSON pointers to them.
pub(crate) fn check_size(root: &Value) -> Result<(), GrammarError> {
    let (mut nodes, mut names) = (0, 0);
    let mut rest = vec![(root, 0)];
    while let Some((value, place)) = rest.pop() {
        nodes += 1;
        names += place;
        check_limit("the number of the schema's values", nodes, MAX_SCHEMA_NODES)?;
        let what = "the size in bytes of the paths to the schema's values";
        check_limit(what, names, MAX_SCHEMA_POINTER_BYTES)?;
        match value {
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, place + 6))),
            Value::Object(fields) => {
                rest.extend(fields.iter().map(|(name, field)| (field, place + name.len() + 1)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the depth of a schema with local references followed, except those to enclosing values.
fn check_depth(root: &Value) -> Result<(), GrammarError> {
    let address = |value: &Value| std::ptr::from_ref(value).addr();
    // A value is visited again only if it is deeper, thus at most as often as the bound.
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
        check_limit("the depth of the schema with its references", depth, MAX_SCHEMA_DEPTH)?;
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
                                "`$id` is supported only at the schema's root".to_owned(),
                            ));
                        }
                        // Plain values, not schemas.
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

/// Returns true if a reference is not supported because it leads to another document or contains
/// escapes.
fn is_external_reference(to: &str) -> bool {
    to.contains(['~', '%']) || !(to == "#" || to.starts_with("#/"))
}

/// Resolves a reference.
fn follow<'a>(root: &'a Value, to: &str) -> Result<&'a Value, GrammarError> {
    let refused = |why: &str| Err(GrammarError(why.to_owned()));
    let Some(pointer) = to.strip_prefix('#').filter(|to| to.is_empty() || to.starts_with('/'))
    else {
        return refused("only references within the schema (`#/...`) are followed");
    };
    if pointer.contains(['~', '%']) {
        return refused("a `$ref` with `~` or `%` is not followed; rename its target");
    }
    match root.pointer(pointer) {
        Some(found) => Ok(found),
        None => refused("the target of a `$ref` is not in the schema"),
    }
}

/// Translates all patterns.
fn write_patterns(
    root: &mut Value,
    unsupported: UnsupportedKeywords,
    unenforced: &mut BTreeSet<String>,
) -> Result<(), GrammarError> {
    let mut seen = HashSet::new();
    let mut rest = vec![String::new()];
    while let Some(place) = rest.pop() {
        if seen.contains(&place) {
            continue;
        }
        if let Some(Value::Object(schema)) = root.pointer_mut(&place) {
            if unsupported == UnsupportedKeywords::Removed {
                drop_untranslated_patterns(schema, unenforced);
            }
            write_own(schema)?;
            rest.extend(below(schema, &place));
        }
        seen.insert(place);
    }
    Ok(())
}

/// Removes the patterns and multiples of a schema itself that the parser does not support.
fn drop_untranslated_patterns(schema: &mut Map<String, Value>, unheld: &mut BTreeSet<String>) {
    let is_written = |pattern: &str| regex::pattern(pattern).is_ok();
    let text = schema.get("pattern").and_then(Value::as_str);
    let keys = schema.get("patternProperties").and_then(Value::as_object);
    let is_lost = text.is_some_and(|pattern| !is_written(pattern));
    let are_lost = keys.is_some_and(|all| !all.keys().all(|pattern| is_written(pattern)));
    for (keyword, is_lost) in [("pattern", is_lost), ("patternProperties", are_lost)] {
        if is_lost {
            schema.shift_remove(keyword);
            unheld.insert(keyword.to_owned());
        }
    }
    if are_lost {
        // The removed patterns may match properties that it excludes.
        schema.shift_remove("additionalProperties");
    }
    let multiple = schema.get("multipleOf").and_then(Value::as_f64);
    if multiple.is_some_and(|number| check_multiples(std::iter::once(number)).is_err()) {
        schema.shift_remove("multipleOf");
        unheld.insert("multipleOf".to_owned());
    }
}

/// Translates the patterns of a schema itself.
fn write_own(schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
    if let Some(Value::String(pattern)) = schema.get_mut("pattern") {
        *pattern = regex::pattern(pattern)?;
    }
    if let Some(Value::Object(properties)) = schema.get_mut("patternProperties") {
        let mut written = Map::new();
        for (pattern, value) in std::mem::take(properties) {
            if written.insert(regex::pattern(&pattern)?, value).is_some() {
                return Err(GrammarError(format!(
                    "two of the `patternProperties` are equivalent to `{pattern}`"
                )));
            }
        }
        *properties = written;
    }
    Ok(())
}
