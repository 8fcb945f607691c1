//! Conservative check that no value is valid against two schemas. `oneOf` of such schemas is
//! equivalent to `anyOf`.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Maximum number of schemas and names examined for one document; beyond it, schemas are assumed to
/// overlap.
const MAX_COMPARISONS: usize = 200_000;
/// Maximum number of alternatives of one `oneOf`, all of which are compared in pairs.
const MAX_ALTERNATIVES: usize = 256;
/// Maximum nesting of properties that are compared.
const MAX_DEPTH: usize = 4;

/// Compares the schemas of a document.
pub(crate) struct DisjointChecker<'s> {
    root: &'s Value,
    left: usize,
}

/// Schemas that all apply to the same value.
type Parts<'s> = Vec<&'s Map<String, Value>>;

impl<'s> DisjointChecker<'s> {
    pub(crate) fn new(root: &'s Value) -> DisjointChecker<'s> {
        DisjointChecker { root, left: MAX_COMPARISONS }
    }

    /// Returns true if no value is valid against two of the schemas in the `oneOf` of a schema.
    pub(crate) fn are_disjoint(&mut self, schema: &'s Map<String, Value>, of: &'s [Value]) -> bool {
        if of.len() > MAX_ALTERNATIVES {
            return false;
        }
        let parts: Vec<Option<Parts<'s>>> = of.iter().map(|branch| self.parts(branch)).collect();
        (0..parts.len()).all(|first| {
            (first + 1..parts.len()).all(|second| {
                let (Some(one), Some(two)) = (&parts[first], &parts[second]) else { return true };
                self.differ(schema, one, two, MAX_DEPTH)
            })
        })
    }

    /// Returns a schema together with those that it includes by `allOf` and `$ref`; `None` if it
    /// allows nothing.
    fn parts(&mut self, schema: &'s Value) -> Option<Parts<'s>> {
        match schema {
            // Without its parts a schema allows more, so it is never taken for disjoint.
            Value::Object(_) if self.left == 0 => Some(Vec::new()),
            Value::Object(schema) => {
                let parts = crate::schema::parts(self.root, schema);
                self.left = self.left.saturating_sub(parts.len());
                Some(parts)
            }
            Value::Bool(false) => None,
            _ => Some(Vec::new()),
        }
    }

    /// Returns true if no value that is valid against `around` is valid against both.
    fn differ(
        &mut self,
        around: &'s Map<String, Value>,
        one: &Parts<'s>,
        two: &Parts<'s>,
        depth: usize,
    ) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left = self.left.saturating_sub(1 + one.len() + two.len());
        let kinds = kinds(std::iter::once(&around));
        let (kinds_of_one, kinds_of_two) = (kinds & self::kinds(one), kinds & self::kinds(two));
        let (values_of_one, values_of_two) = (values(one), values(two));
        let both = match (&values_of_one, &values_of_two) {
            (Some(first), Some(second)) => {
                return !first.iter().any(|value| second.iter().any(|other| equal(value, other)));
            }
            (Some(values), None) => kinds_of_two & kinds_of_values(values),
            (None, Some(values)) => kinds_of_one & kinds_of_values(values),
            (None, None) => kinds_of_one & kinds_of_two,
        };
        if both == 0 {
            return true;
        }
        if both == OBJECT && depth > 0 && self.objects_differ(one, two, depth) {
            return true;
        }
        self.all_options_differ(around, one, two, depth)
            || self.all_options_differ(around, two, one, depth)
    }

    /// Returns true if a property that one of them requires can have no value that is valid for
    /// both.
    fn objects_differ(&mut self, one: &Parts<'s>, two: &Parts<'s>, depth: usize) -> bool {
        let names = |parts: &Parts<'s>| -> Vec<&'s str> {
            parts.iter().flat_map(|part| crate::graph::required(part)).collect()
        };
        let (of_one, of_two) = (names(one), names(two));
        let effort = of_one.len() * (1 + two.len()) + of_two.len() * (1 + one.len());
        self.left = self.left.saturating_sub(effort);
        if of_one.iter().any(|name| excludes(two, name))
            || of_two.iter().any(|name| excludes(one, name))
        {
            return true;
        }
        let all: HashSet<&str> = of_one.into_iter().chain(of_two).collect();
        let nothing = empty();
        all.into_iter().any(|name| {
            let (first, second) = (self.property(one, name), self.property(two, name));
            match (first, second) {
                (Some(first), Some(second)) => self.differ(nothing, &first, &second, depth - 1),
                // One of them is `false`.
                _ => true,
            }
        })
    }

    /// Returns all schemas that apply to a property; `None` if they allow nothing.
    fn property(&mut self, parts: &Parts<'s>, name: &str) -> Option<Parts<'s>> {
        let mut found = Vec::new();
        for part in parts {
            if let Some(schema) = part.get("properties").and_then(|all| all.get(name)) {
                found.extend(self.parts(schema)?);
            }
        }
        Some(found)
    }

    /// Returns true if all options of an `anyOf` or `oneOf` of `one` are disjoint from `two`.
    fn all_options_differ(
        &mut self,
        around: &'s Map<String, Value>,
        one: &Parts<'s>,
        two: &Parts<'s>,
        depth: usize,
    ) -> bool {
        if depth == 0 {
            return false;
        }
        let options = one.iter().flat_map(|part| {
            ["anyOf", "oneOf"].into_iter().filter_map(|name| part.get(name)?.as_array())
        });
        let options: Vec<&'s Vec<Value>> = options.collect();
        options.into_iter().any(|options| {
            options.iter().all(|option| match self.parts(option) {
                Some(mut option) => {
                    option.extend(one.iter().filter(|part| !part.contains_key("anyOf")));
                    self.differ(around, &option, two, depth - 1)
                }
                None => true,
            })
        })
    }
}

fn empty<'s>() -> &'s Map<String, Value> {
    static EMPTY: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    EMPTY.get_or_init(Map::new)
}

const OBJECT: u8 = 1 << 5;
const ALL_KINDS: u8 = 0b11_1111;

/// Returns the bit of a type. Integers count as numbers.
fn kind(name: &str) -> u8 {
    match name {
        "null" => 1,
        "boolean" => 1 << 1,
        "number" | "integer" => 1 << 2,
        "string" => 1 << 3,
        "array" => 1 << 4,
        "object" => OBJECT,
        _ => 0,
    }
}

/// Returns the types that all parts allow.
fn kinds<'p>(parts: impl IntoIterator<Item = &'p &'p Map<String, Value>>) -> u8 {
    let of = |part: &&Map<String, Value>| match part.get("type") {
        Some(Value::String(name)) => kind(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(kind).fold(0, |all, one| all | one)
        }
        _ => ALL_KINDS,
    };
    parts.into_iter().map(of).fold(ALL_KINDS, |all, one| all & one)
}

/// Returns the only values that parts allow, if they list them.
fn values<'s>(parts: &Parts<'s>) -> Option<Vec<&'s Value>> {
    parts.iter().find_map(|part| match (part.get("const"), part.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    })
}

fn kinds_of_values(values: &[&Value]) -> u8 {
    let of = |value: &&Value| match value {
        Value::Null => kind("null"),
        Value::Bool(_) => kind("boolean"),
        Value::Number(_) => kind("number"),
        Value::String(_) => kind("string"),
        Value::Array(_) => kind("array"),
        Value::Object(_) => OBJECT,
    };
    values.iter().map(of).fold(0, |all, one| all | one)
}

/// Returns true if two values are or may be equal: 1 equals 1.0, and the contents of lists and
/// objects are not compared.
fn equal(one: &Value, two: &Value) -> bool {
    match (one, two) {
        (Value::Number(one), Value::Number(two)) => one == two || one.as_f64() == two.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => one == two,
    }
}

/// Returns true if an object cannot have a property of this name.
fn excludes(parts: &Parts<'_>, name: &str) -> bool {
    parts.iter().any(|part| {
        part.get("additionalProperties") == Some(&Value::Bool(false))
            && !part.contains_key("patternProperties")
            && part.get("properties").is_none_or(|all| all.get(name).is_none())
    })
}
