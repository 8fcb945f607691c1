//! Closing of objects to undeclared properties.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::graph::{Graph, InPlaceKeyword, ValuePart, count, required};
use crate::schema::check_size;

/// Keywords by which a schema itself restricts other properties, or leaves that to other schemas.
const RESTRICTING_KEYWORDS: [&str; 14] = [
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "propertyNames",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependencies",
    "dependentSchemas",
    "$dynamicRef",
    "$recursiveRef",
];

/// Adds `additionalProperties: false` to all objects of a schema that declare `properties` and do
/// not restrict others, unless other schemas that apply to the same object may declare more.
///
/// A schema beyond the bounds is left unchanged.
pub fn close_objects(schema: &mut Value) {
    if check_size(schema).is_err() {
        return;
    }
    let graph = Graph::new(schema);
    let is_merged = merged_objects(&graph);
    let objects =
        graph.nodes.iter().zip(is_merged).filter(|(node, is_merged)| {
            !is_merged && node.schema.as_object().is_some_and(is_declared)
        });
    let places: Vec<String> = objects.map(|(node, _)| node.pointer.clone()).collect();
    for place in places {
        if let Some(Value::Object(object)) = schema.pointer_mut(&place) {
            object.insert("additionalProperties".to_owned(), Value::Bool(false));
        }
    }
}

/// Returns true if a schema declares all properties that it needs, and does not restrict others.
fn is_declared(schema: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = schema.get("properties") else { return false };
    let may_be_object = match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        Some(kind) => kind == "object",
    };
    may_be_object
        && !RESTRICTING_KEYWORDS.iter().any(|keyword| schema.contains_key(*keyword))
        && required(schema).all(|name| properties.contains_key(name))
        && count(schema, "minProperties").is_none_or(|least| least <= properties.len())
}

/// Returns, for each schema, if another schema restricts the same object.
fn merged_objects(graph: &Graph<'_>) -> Vec<bool> {
    let mut joint = vec![false; graph.nodes.len()];
    let mut rest = Vec::new();
    for node in &graph.nodes {
        let says = |keyword: &str| node.schema.get(keyword).is_some();
        let is_alone = |how: InPlaceKeyword| match how {
            InPlaceKeyword::All => node.in_place.len() == 1,
            InPlaceKeyword::Any(keyword) => {
                node.in_place.iter().all(|(other, _)| *other == InPlaceKeyword::Any(keyword))
            }
            InPlaceKeyword::Conditional => false,
        };
        let of_objects = ["properties", "required", "patternProperties", "additionalProperties"]
            .into_iter()
            .any(says);
        for (how, used) in &node.in_place {
            if of_objects || !is_alone(*how) {
                rest.push(*used);
            }
        }
        // Properties with a schema by name, to which pattern schemas may apply, too.
        let named: HashSet<&str> = node
            .parts
            .iter()
            .filter_map(|(part, _)| match part {
                ValuePart::Property(name) => Some(*name),
                _ => None,
            })
            .collect();
        let patterns = node.parts.iter().filter(|(part, _)| *part == ValuePart::Properties).count();
        if patterns > 1 || (patterns == 1 && says("patternProperties") && !named.is_empty()) {
            rest.extend(node.parts.iter().map(|(_, used)| *used));
        }
    }
    while let Some(index) = rest.pop() {
        if !std::mem::replace(&mut joint[index], true) {
            rest.extend(graph.nodes[index].in_place.iter().map(|(_, used)| *used));
        }
    }
    joint
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn declared_objects_are_closed() {
        let a = json!({"a": {"type": "integer"}});
        for (given, is_closed) in [
            (json!({"type": "object", "properties": a}), true),
            (json!({"properties": {}}), true),
            (json!({"type": "object"}), false),
            (json!({"type": "object", "properties": a, "additionalProperties": true}), false),
            (json!({"properties": a, "patternProperties": {"^b": {}}}), false),
            (json!({"properties": a, "required": ["b"]}), false),
            (json!({"properties": a, "allOf": [{"properties": {"b": {}}}]}), false),
        ] {
            let mut schema = given.clone();
            close_objects(&mut schema);
            let said = schema.get("additionalProperties") == Some(&json!(false));
            assert_eq!(said, is_closed, "{given}");
        }
    }

    #[test]
    fn objects_within_are_closed_unless_others_hold_for_them_too() {
        let object = || json!({"type": "object", "properties": {"a": {}}});
        let mut schema = json!({"type": "object", "properties": {
            "plain": object(), "list": {"items": object()},
            "one": {"anyOf": [object(), {"type": "null"}]},
            "of": {"$ref": "#/$defs/of"}, "all": {"allOf": [object(), {"$ref": "#/$defs/base"}]},
            "more": {"properties": {"b": {}}, "anyOf": [object()]},
        }, "$defs": {"of": object(), "base": object()}});
        close_objects(&mut schema);
        let is_closed = |place: &str| {
            let object = schema.pointer(place).unwrap_or_else(|| panic!("{place}"));
            object.get("additionalProperties") == Some(&json!(false))
        };
        for place in [
            "",
            "/properties/plain",
            "/properties/list/items",
            "/properties/one/anyOf/0",
            "/$defs/of",
        ] {
            assert!(is_closed(place), "{place}");
        }
        for place in [
            "/properties/all/allOf/0",
            "/$defs/base",
            "/properties/more",
            "/properties/more/anyOf/0",
        ] {
            assert!(!is_closed(place), "{place}");
        }
    }
}
