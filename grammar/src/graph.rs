//! A JSON Schema as a graph of schemas that apply to the same value or to its parts.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Way in which a schema applies another one to the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InPlaceKeyword {
    /// `$ref` and `allOf`: the value must be valid.
    All,
    /// `anyOf` and `oneOf`: the value must be valid against one of the schemas of this keyword.
    Any(&'static str),
    /// `not`, `if` and schemas that depend on a key: the value may be valid or not.
    Conditional,
}

/// Part of a value to which a schema applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValuePart<'s> {
    /// The property of this name.
    Property(&'s str),
    /// Some properties, or their names.
    Properties,
    /// The item at this index.
    Item(usize),
    /// The items after those with an index, or some items.
    Items,
}

/// A schema and the schemas that it uses, as indices of [`Graph::nodes`].
#[derive(Debug)]
pub(crate) struct Node<'s> {
    pub(crate) schema: &'s Value,
    /// JSON pointer to the schema.
    pub(crate) pointer: String,
    pub(crate) in_place: Vec<(InPlaceKeyword, usize)>,
    pub(crate) parts: Vec<(ValuePart<'s>, usize)>,
}

/// All schemas reachable from a schema, itself first.
#[derive(Debug)]
pub(crate) struct Graph<'s> {
    pub(crate) nodes: Vec<Node<'s>>,
}

/// Keywords whose schemas apply to the same value, which may be valid or not.
const CONDITIONAL_KEYWORDS: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords whose schemas apply to some properties.
const PROPERTY_KEYWORDS: [&str; 3] =
    ["additionalProperties", "unevaluatedProperties", "propertyNames"];
/// Keywords whose schemas apply to some items.
const ITEM_KEYWORDS: [&str; 4] = ["items", "additionalItems", "unevaluatedItems", "contains"];

impl<'s> Graph<'s> {
    /// Builds the graph of a schema. References to other documents are ignored.
    pub(crate) fn new(root: &'s Value) -> Graph<'s> {
        let mut graph = Builder { nodes: Vec::new(), known: HashMap::new(), root };
        graph.node(root, String::new());
        let mut next = 0;
        while next < graph.nodes.len() {
            graph.follow(next);
            next += 1;
        }
        Graph { nodes: graph.nodes }
    }
}

struct Builder<'s> {
    nodes: Vec<Node<'s>>,
    known: HashMap<*const Value, usize>,
    root: &'s Value,
}

impl<'s> Builder<'s> {
    fn node(&mut self, schema: &'s Value, pointer: String) -> usize {
        let address = std::ptr::from_ref(schema);
        *self.known.entry(address).or_insert_with(|| {
            let (in_place, parts) = (Vec::new(), Vec::new());
            self.nodes.push(Node { schema, pointer, in_place, parts });
            self.nodes.len() - 1
        })
    }

    fn follow(&mut self, index: usize) {
        let Some(schema) = self.nodes[index].schema.as_object() else { return };
        let place = self.nodes[index].pointer.clone();
        let (mut in_place, mut parts) = (Vec::new(), Vec::new());
        for (keyword, value) in schema {
            let here = format!("{place}/{}", escape_pointer(keyword));
            self.follow_in_place(keyword, value, &here, &mut in_place);
            self.follow_parts(keyword, value, &here, &mut parts);
        }
        self.nodes[index].in_place = in_place;
        self.nodes[index].parts = parts;
    }

    fn follow_in_place(
        &mut self,
        keyword: &str,
        value: &'s Value,
        place: &str,
        found: &mut Vec<(InPlaceKeyword, usize)>,
    ) {
        match (keyword, value) {
            ("$ref", Value::String(to)) => {
                let pointer =
                    to.strip_prefix('#').filter(|to| to.is_empty() || to.starts_with('/'));
                let root = self.root;
                if let Some((pointer, schema)) =
                    pointer.and_then(|pointer| Some((pointer, root.pointer(pointer)?)))
                {
                    found.push((InPlaceKeyword::All, self.node(schema, pointer.to_owned())));
                }
            }
            ("allOf", Value::Array(all)) => self.list(all, place, InPlaceKeyword::All, found),
            ("anyOf", Value::Array(all)) => {
                self.list(all, place, InPlaceKeyword::Any("anyOf"), found)
            }
            ("oneOf", Value::Array(all)) => {
                self.list(all, place, InPlaceKeyword::Any("oneOf"), found)
            }
            ("dependentSchemas" | "dependencies", Value::Object(of)) => {
                let schemas = of.iter().filter(|(_, schema)| !schema.is_array());
                for (name, schema) in schemas {
                    let place = format!("{place}/{}", escape_pointer(name));
                    found.push((InPlaceKeyword::Conditional, self.node(schema, place)));
                }
            }
            (keyword, value) if CONDITIONAL_KEYWORDS.contains(&keyword) => {
                found.push((InPlaceKeyword::Conditional, self.node(value, place.to_owned())));
            }
            _ => {}
        }
    }

    fn follow_parts(
        &mut self,
        keyword: &str,
        value: &'s Value,
        place: &str,
        found: &mut Vec<(ValuePart<'s>, usize)>,
    ) {
        match (keyword, value) {
            ("properties" | "patternProperties", Value::Object(of)) => {
                for (name, schema) in of {
                    let is_name = keyword == "properties";
                    let part =
                        if is_name { ValuePart::Property(name) } else { ValuePart::Properties };
                    let place = format!("{place}/{}", escape_pointer(name));
                    found.push((part, self.node(schema, place)));
                }
            }
            ("prefixItems" | "items", Value::Array(items)) => {
                for (index, schema) in items.iter().enumerate() {
                    let node = self.node(schema, format!("{place}/{index}"));
                    found.push((ValuePart::Item(index), node));
                }
            }
            (keyword, value) if PROPERTY_KEYWORDS.contains(&keyword) => {
                found.push((ValuePart::Properties, self.node(value, place.to_owned())));
            }
            (keyword, value) if ITEM_KEYWORDS.contains(&keyword) => {
                found.push((ValuePart::Items, self.node(value, place.to_owned())));
            }
            _ => {}
        }
    }

    fn list(
        &mut self,
        all: &'s [Value],
        place: &str,
        how: InPlaceKeyword,
        found: &mut Vec<(InPlaceKeyword, usize)>,
    ) {
        for (index, schema) in all.iter().enumerate() {
            found.push((how, self.node(schema, format!("{place}/{index}"))));
        }
    }
}

/// Escapes a segment of a JSON pointer.
pub(crate) fn escape_pointer(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Returns the names that a schema requires.
pub(crate) fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let all = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    all.iter().filter_map(Value::as_str)
}

/// Returns the value of a keyword that is a count.
pub(crate) fn count(schema: &Map<String, Value>, keyword: &str) -> Option<usize> {
    let count = schema.get(keyword)?.as_f64()?;
    (count >= 0.0).then_some(count as usize)
}
