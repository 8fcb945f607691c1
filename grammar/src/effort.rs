//! Bound on the work of validating a value. A validator visits a value once for each way in which a
//! schema applies to it, and schemas can make the number of ways exponential.

use std::collections::HashMap;

use serde_json::Value;

use crate::graph::{Graph, ValuePart};

/// Maximum number of visits of values.
const MAX_VISITS: u64 = 500_000;
/// Maximum number of pairs of a value and a schema that are examined to count the visits.
const MAX_PAIRS: usize = 200_000;
/// Maximum number of nested schema applications along the deepest value: a validator recurses.
const MAX_FRAMES: usize = 1_000;

/// Returns true if a value can be validated in bounded time and on a small stack. The schema's
/// references must not lead back to themselves without a value in between.
pub(crate) fn is_bounded(graph: &Graph<'_>, value: &Value) -> bool {
    let order = order(graph);
    let (mut visits, mut pairs) = (0_u64, 0);
    // Values, with the number of times that each schema applies to them and the depth of the
    // validator there.
    let mut rest = vec![(value, HashMap::from([(0_usize, 1_u64)]), 0)];
    while let Some((value, mut counts, frames)) = rest.pop() {
        let mut depth: HashMap<usize, usize> = counts.keys().map(|node| (*node, 1)).collect();
        let mut reached: Vec<usize> = counts.keys().copied().collect();
        reached.sort_by_key(|node| order[*node]);
        let mut parts: HashMap<Key<'_>, HashMap<usize, u64>> = HashMap::new();
        let mut next = 0;
        let mut deepest = 0;
        // Each schema is processed before those that it applies to the same value.
        while next < reached.len() {
            let index = reached[next];
            next += 1;
            let (count, here) = (counts[&index], depth[&index]);
            visits = visits.saturating_add(count);
            pairs += 1;
            if visits > MAX_VISITS || pairs > MAX_PAIRS {
                return false;
            }
            deepest = deepest.max(here);
            let node = &graph.nodes[index];
            // Finding the unevaluated part of a value takes another visit.
            let is_twice = ["unevaluatedProperties", "unevaluatedItems"]
                .iter()
                .any(|keyword| node.schema.get(*keyword).is_some());
            let count = if is_twice { count.saturating_mul(2) } else { count };
            for (_, used) in &node.in_place {
                if !counts.contains_key(used) {
                    let at = reached[next..].partition_point(|other| order[*other] < order[*used]);
                    reached.insert(next + at, *used);
                }
                let sum = counts.entry(*used).or_default();
                *sum = sum.saturating_add(count);
                let deeper = depth.entry(*used).or_default();
                *deeper = (*deeper).max(here + 1);
            }
            for (part, used) in &node.parts {
                let sum = parts.entry(Key::from(*part)).or_default().entry(*used).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        let frames = frames + deepest;
        if frames > MAX_FRAMES {
            return false;
        }
        push_parts(value, &parts, frames, &mut rest);
    }
    true
}

/// A value, the number of times that each schema applies to it, and the depth of the validator.
type Counted<'v> = (&'v Value, HashMap<usize, u64>, usize);

fn push_parts<'v>(
    value: &'v Value,
    parts: &HashMap<Key<'_>, HashMap<usize, u64>>,
    frames: usize,
    rest: &mut Vec<Counted<'v>>,
) {
    let of = |keys: [Key<'_>; 2]| {
        let mut counts: HashMap<usize, u64> = HashMap::new();
        for (node, count) in keys.iter().filter_map(|key| parts.get(key)).flatten() {
            let sum = counts.entry(*node).or_default();
            *sum = sum.saturating_add(*count);
        }
        counts
    };
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let counts = of([Key::Property(name), Key::Properties]);
                if !counts.is_empty() {
                    rest.push((field, counts, frames));
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let counts = of([Key::Item(index), Key::Items]);
                if !counts.is_empty() {
                    rest.push((item, counts, frames));
                }
            }
        }
        _ => {}
    }
}

/// A part of a value for which applications of schemas are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key<'s> {
    Property(&'s str),
    Properties,
    Item(usize),
    Items,
}

impl<'s> From<ValuePart<'s>> for Key<'s> {
    fn from(part: ValuePart<'s>) -> Key<'s> {
        match part {
            ValuePart::Property(name) => Key::Property(name),
            ValuePart::Properties => Key::Properties,
            ValuePart::Item(index) => Key::Item(index),
            ValuePart::Items => Key::Items,
        }
    }
}

/// Returns a rank for each schema, such that it precedes those that it applies to the same value.
fn order(graph: &Graph<'_>) -> Vec<usize> {
    let count = graph.nodes.len();
    let mut users = vec![0; count];
    graph.nodes.iter().flat_map(|node| &node.in_place).for_each(|(_, used)| users[*used] += 1);
    let mut ready: Vec<usize> = (0..count).filter(|index| users[*index] == 0).collect();
    let mut order = vec![count; count];
    let mut rank = 0;
    while let Some(index) = ready.pop() {
        order[index] = rank;
        rank += 1;
        for (_, used) in &graph.nodes[index].in_place {
            users[*used] -= 1;
            if users[*used] == 0 {
                ready.push(*used);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn ordinary_values_are_looked_at() {
        let schema = json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object",
            "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}}});
        let mut value = json!({});
        for _ in 0..60 {
            value = json!({"left": value, "right": {}});
        }
        assert!(is_bounded(&Graph::new(&schema), &value));
        let list =
            json!({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}});
        let items: Vec<u32> = (0..20_000).collect();
        assert!(is_bounded(&Graph::new(&list), &json!(items)));
    }

    #[test]
    fn what_would_be_looked_at_without_end_is_not() {
        // Each level is visited twice as often as the one around it.
        let branch = json!({"properties": {"a": {"$ref": "#"}}});
        let schema = json!({"anyOf": [branch, branch]});
        let mut value = json!(1);
        for _ in 0..40 {
            value = json!({"a": value});
        }
        assert!(!is_bounded(&Graph::new(&schema), &value));
        let mut defs = Map::new();
        for index in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
            defs.insert(format!("d{index}"), json!({"allOf": [next, next]}));
        }
        defs.insert("d40".to_owned(), json!({"type": "integer"}));
        let schema = json!({"$ref": "#/$defs/d0", "$defs": defs});
        assert!(!is_bounded(&Graph::new(&schema), &json!(1)));
    }
}
