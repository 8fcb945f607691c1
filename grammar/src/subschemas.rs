//! The schemas within a schema.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Keywords whose value is a schema or a list of schemas, and those whose values each are one.
const SCHEMAS: [&str; 7] =
    ["items", "additionalItems", "prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf"];
const NAMED_SCHEMAS: [&str; 2] = ["properties", "patternProperties"];

/// All schemas that a schema leads to.
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

/// Where the schemas of a schema are.
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

/// The place that a reference leads to, which was followed before.
pub(crate) fn target(to: &str) -> &str {
    to.trim_start_matches('#')
}
