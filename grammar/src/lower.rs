//! Translation of a JSON Schema to the subset that the parser supports. Keywords without effect are
//! removed, unsupported keywords are expressed by supported ones where possible, and the rest is
//! either refused by name or removed and recorded, so that it is checked when the answer has ended.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value, json};

use crate::disjoint::DisjointChecker;
use crate::endless::{check_cycles, endless_places};
use crate::error::GrammarError;
use crate::graph::{Graph, count, required};
use crate::{integers, patterns};

/// Treatment of keywords that the parser does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnsupportedKeywords {
    /// The parser refuses them by name.
    Rejected,
    /// They are removed, so that the schema allows more.
    Removed,
}

/// Formats that the parser enforces; others are annotations.
const FORMATS: [&str; 11] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "unknown",
];

/// Restricting keywords that the parser does not support, except `uniqueItems`.
const UNSUPPORTED: [&str; 16] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// Translates a schema in place and adds the keywords that are not enforced to `unheld`.
///
/// # Errors
/// Returns an error if references lead back to themselves, if no finite value is valid, or if the
/// parser cannot express the schema.
pub(crate) fn lower(
    root: &mut Value,
    unsupported: UnsupportedKeywords,
    unheld: &mut BTreeSet<String>,
) -> Result<(), GrammarError> {
    let graph = Graph::new(root);
    check_cycles(&graph)?;
    let endless = endless_places(&graph)?;
    let mut disjoint = DisjointChecker::new(root);
    let mut options = HashSet::new();
    let mut places: Vec<String> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        places.push(node.pointer.clone());
        if let Value::Object(schema) = node.schema
            && let Some(Value::Array(of)) = schema.get("oneOf")
            && disjoint.are_disjoint(schema, of)
        {
            options.insert(node.pointer.clone());
        }
    }
    // A reference into a keyword would be dangling after the keyword is renamed.
    let is_referred = |keyword: &str| {
        let schemas = graph.nodes.iter().filter_map(|node| node.schema.get("$ref")?.as_str());
        schemas.into_iter().any(|to| to.split('/').any(|name| name == keyword))
    };
    let keeps_one_of = is_referred("oneOf");
    drop(graph);
    for place in endless {
        if let Some(schema) = root.pointer_mut(&place) {
            *schema = Value::Bool(false);
        }
    }
    // Inner schemas first: the keywords around them may be renamed.
    places.sort_by_key(|place| std::cmp::Reverse(place.len()));
    for place in places {
        let Some(Value::Object(schema)) = root.pointer_mut(&place) else { continue };
        let is_disjoint = options.contains(&place);
        let mut of = Lowering { unsupported, unheld };
        of.schema(schema, (!keeps_one_of).then_some(is_disjoint))?;
    }
    Ok(())
}

/// Removes references that `is_elsewhere` selects: those to other documents, and those that
/// implementations resolve differently.
pub(crate) fn drop_references(
    root: &mut Value,
    unheld: &mut BTreeSet<String>,
    is_elsewhere: fn(&str) -> bool,
) {
    let graph = Graph::new(root);
    let is_lost =
        |schema: &Value| schema.get("$ref").and_then(Value::as_str).is_some_and(is_elsewhere);
    let lost = graph.nodes.iter().filter(|node| is_lost(node.schema));
    let lost: Vec<String> = lost.map(|node| node.pointer.clone()).collect();
    for place in lost {
        if let Some(Value::Object(schema)) = root.pointer_mut(&place) {
            schema.shift_remove("$ref");
            unheld.insert("$ref".to_owned());
        }
    }
}

struct Lowering<'u> {
    unsupported: UnsupportedKeywords,
    unheld: &'u mut BTreeSet<String>,
}

impl Lowering<'_> {
    /// Translates one schema, without the schemas in it. `is_disjoint` is true if the schemas of
    /// its `oneOf` are known to be disjoint; `None` if that keyword must keep its name.
    fn schema(
        &mut self,
        schema: &mut Map<String, Value>,
        is_disjoint: Option<bool>,
    ) -> Result<(), GrammarError> {
        drop_annotations(schema);
        name_properties(schema);
        self.drop_unique_items(schema);
        if let Some(is_disjoint) = is_disjoint {
            self.write_one_of(schema, is_disjoint);
        }
        self.write_numbers(schema)?;
        if self.unsupported == UnsupportedKeywords::Removed {
            self.drop_unsupported(schema);
        }
        Ok(())
    }

    fn drop(&mut self, schema: &mut Map<String, Value>, keyword: &str) {
        if schema.shift_remove(keyword).is_some() {
            self.unheld.insert(keyword.to_owned());
        }
    }

    fn drop_unique_items(&mut self, schema: &mut Map<String, Value>) {
        let is_true = schema.get("uniqueItems") == Some(&Value::Bool(true));
        if is_true && count(schema, "maxItems").is_none_or(|most| most > 1) {
            self.unheld.insert("uniqueItems".to_owned());
        }
        schema.shift_remove("uniqueItems");
    }

    /// Replaces `oneOf` by `anyOf`, which is equivalent if the options are disjoint.
    fn write_one_of(&mut self, schema: &mut Map<String, Value>, is_disjoint: bool) {
        let Some(Value::Array(options)) = schema.get("oneOf") else { return };
        if !is_disjoint && options.len() > 1 {
            self.unheld.insert("oneOf".to_owned());
        }
        if !schema.contains_key("anyOf") {
            let named = |(keyword, value): (String, Value)| {
                (if keyword == "oneOf" { "anyOf".to_owned() } else { keyword }, value)
            };
            *schema = std::mem::take(schema).into_iter().map(named).collect();
            return;
        }
        let options = schema.shift_remove("oneOf");
        add_all_of(schema, json!({"anyOf": options}));
    }

    fn write_numbers(&mut self, schema: &mut Map<String, Value>) -> Result<(), GrammarError> {
        if let Err(error) = integers::write_bounds(schema) {
            if self.unsupported == UnsupportedKeywords::Rejected {
                return Err(error);
            }
            self.unheld.insert("minimum".to_owned());
        }
        for keyword in ["const", "enum"] {
            let values = match schema.get(keyword) {
                Some(Value::Array(values)) if keyword == "enum" => values.clone(),
                Some(value) if keyword == "const" => vec![value.clone()],
                _ => continue,
            };
            if !values.iter().any(integers::is_inexact) {
                continue;
            }
            schema.shift_remove(keyword);
            let (inexact, mut options): (Vec<Value>, Vec<Value>) =
                values.into_iter().partition(integers::is_inexact);
            if !options.is_empty() {
                options = vec![json!({"enum": options})];
            }
            for value in inexact {
                match integers::single_value(&value) {
                    Some(only) => options.push(only),
                    None if self.unsupported == UnsupportedKeywords::Removed => {
                        self.unheld.insert(keyword.to_owned());
                        options.push(json!({}));
                    }
                    None => {
                        return Err(GrammarError(format!(
                            "the number {value} of `{keyword}` is too large to be distinguished \
                             from those next to it; give it as a text, or as bounds"
                        )));
                    }
                }
            }
            add_all_of(schema, json!({"anyOf": options}));
        }
        Ok(())
    }

    fn drop_unsupported(&mut self, schema: &mut Map<String, Value>) {
        for keyword in UNSUPPORTED {
            self.drop(schema, keyword);
        }
        if !are_counted(schema) {
            self.drop(schema, "minProperties");
            self.drop(schema, "maxProperties");
        }
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let patterns: Vec<&String> = patterns.map(|all| all.keys().collect()).unwrap_or_default();
        if !patterns::are_disjoint(&patterns) {
            self.drop(schema, "patternProperties");
            // The removed patterns may match properties that it excludes.
            schema.shift_remove("additionalProperties");
        }
    }
}

/// Adds a schema to `allOf`.
fn add_all_of(schema: &mut Map<String, Value>, more: Value) {
    match schema.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(more),
        _ => {
            schema.insert("allOf".to_owned(), json!([more]));
        }
    }
}

/// Returns true if the parser can count an object's properties for `minProperties` and
/// `maxProperties`.
fn are_counted(schema: &Map<String, Value>) -> bool {
    let names: HashSet<&str> = required(schema).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    let all_required = properties.is_none_or(|all| all.keys().all(|name| names.contains(&**name)));
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let one = count(schema, "minProperties").unwrap_or(0) <= 1 + names.len()
        && count(schema, "maxProperties").is_none_or(|most| most == 1 + names.len());
    all_required || (one && is_closed && !schema.contains_key("patternProperties"))
}

/// Removes keywords that every value satisfies.
fn drop_annotations(schema: &mut Map<String, Value>) {
    let is_note = |keyword: &str, value: &Value| match keyword {
        "format" => !value.as_str().is_some_and(|name| FORMATS.contains(&name)),
        "not" => value == &Value::Bool(false),
        "propertyNames" => is_unconstrained(value, Some("string")),
        "unevaluatedProperties" | "unevaluatedItems" => is_unconstrained(value, None),
        "dependentSchemas" => {
            value.as_object().is_some_and(|of| of.values().all(|one| is_unconstrained(one, None)))
        }
        "dependentRequired" => value
            .as_object()
            .is_some_and(|of| of.values().all(|names| names.as_array().is_some_and(Vec::is_empty))),
        "dependencies" => value.as_object().is_some_and(|of| {
            let is_empty = |one: &Value| match one {
                Value::Array(names) => names.is_empty(),
                one => is_unconstrained(one, None),
            };
            of.values().all(is_empty)
        }),
        _ => false,
    };
    schema.retain(|keyword, value| !is_note(keyword, value));
    if schema.get("not").is_some_and(|not| is_unconstrained(not, None)) {
        // No value is valid.
        schema.shift_remove("not");
        schema.insert("enum".to_owned(), json!([]));
    }
    if !schema.contains_key("then") && !schema.contains_key("else") {
        schema.shift_remove("if");
    }
    if !schema.contains_key("if") {
        schema.shift_remove("then");
        schema.shift_remove("else");
    }
    if schema.contains_key("contains")
        && schema.get("minContains").and_then(Value::as_f64) == Some(0.0)
        && !schema.contains_key("maxContains")
    {
        schema.shift_remove("contains");
    }
    if !schema.contains_key("contains") {
        schema.shift_remove("minContains");
        schema.shift_remove("maxContains");
    }
}

/// Returns true if every value, or every value of type `kind`, is valid against a schema.
fn is_unconstrained(schema: &Value, kind: Option<&str>) -> bool {
    const NOTES: [&str; 9] = [
        "title",
        "description",
        "$comment",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
    ];
    match schema {
        Value::Bool(all) => *all,
        Value::Object(fields) => fields.iter().all(|(keyword, value)| {
            NOTES.contains(&&**keyword)
                || (keyword == "type" && value.as_str().is_some_and(|of| Some(of) == kind))
        }),
        _ => false,
    }
}

/// Replaces `propertyNames` and `unevaluatedProperties` where other keywords are equivalent.
fn name_properties(schema: &mut Map<String, Value>) {
    let in_place = ["$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"];
    let others = |schema: &Map<String, Value>| in_place.iter().any(|of| schema.contains_key(*of));
    if schema.get("unevaluatedProperties") == Some(&Value::Bool(false))
        && !schema.contains_key("additionalProperties")
        && !others(schema)
    {
        schema.shift_remove("unevaluatedProperties");
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    let is_declared = schema.contains_key("properties") || schema.contains_key("patternProperties");
    let Some(Value::Object(names)) = schema.get("propertyNames").filter(|_| !is_declared) else {
        return;
    };
    let mut said = names.iter().filter(|(keyword, value)| {
        let one = Map::from_iter([((*keyword).clone(), (*value).clone())]);
        !is_unconstrained(&Value::Object(one), Some("string"))
    });
    let (keyword, value) = match (said.next(), said.next()) {
        (Some((keyword, value)), None) => (keyword.as_str(), value.clone()),
        _ => return,
    };
    let of = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let texts = |values: &[Value]| -> Option<Map<String, Value>> {
        values.iter().map(|name| Some((name.as_str()?.to_owned(), of.clone()))).collect()
    };
    let (keyword, named) = match (keyword, &value) {
        ("enum", Value::Array(values)) => ("properties", texts(values)),
        ("const", value) => ("properties", texts(std::slice::from_ref(value))),
        ("pattern", Value::String(pattern)) => {
            ("patternProperties", Some(Map::from_iter([(pattern.clone(), of.clone())])))
        }
        _ => return,
    };
    let Some(named) = named else { return };
    // Without `additionalProperties: false`, names that match none of the new keywords would be
    // allowed.
    schema.shift_remove("propertyNames");
    schema.insert(keyword.to_owned(), Value::Object(named));
    schema.insert("additionalProperties".to_owned(), Value::Bool(false));
}
