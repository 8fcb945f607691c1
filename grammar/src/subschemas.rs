//! Traversal of the schemas within a schema.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Keywords whose value is a schema or a list of schemas, and keywords whose value is an object of
/// schemas.
const SCHEMAS: [&str; 7] =
    ["items", "additionalItems", "prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf"];
const NAMED_SCHEMAS: [&str; 2] = ["properties", "patternProperties"];

/// Returns all schemas reachable from a schema, itself included.
pub(crate) fn all(root: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    let mut seen = HashSet::new();
    let mut rest = vec![String::new()];
    std::iter::from_fn(move || {
        loop {
            let place = rest.pop()?;
            if let Some(Value::Object(schema)) = root.pointer(&place)
                && seen.insert(place.clone())
            {
                rest.extend(below(schema, &place));
                return Some(schema);
            }
        }
    })
}

/// Returns the JSON pointers to the schemas directly within a schema at `place`.
pub(crate) fn below(schema: &Map<String, Value>, place: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, value) in schema {
        let named = NAMED_SCHEMAS.contains(&keyword.as_str());
        match value {
            Value::String(to) if keyword == "$ref" => {
                found.push(target(to).to_owned());
            }
            Value::Object(of) if named => {
                let escaped = |name: &String| name.replace('~', "~0").replace('/', "~1");
                found.extend(of.keys().map(|name| format!("{place}/{keyword}/{}", escaped(name))));
            }
            Value::Array(list) if SCHEMAS.contains(&keyword.as_str()) => {
                found.extend((0..list.len()).map(|index| format!("{place}/{keyword}/{index}")));
            }
            Value::Object(_) if SCHEMAS.contains(&keyword.as_str()) => {
                found.push(format!("{place}/{keyword}"));
            }
            _ => {}
        }
    }
    found
}

/// Returns the JSON pointer of a local reference, which was checked before.
pub(crate) fn target(to: &str) -> &str {
    to.trim_start_matches('#')
}
